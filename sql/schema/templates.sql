-- (stub until the helper's branch is merged)
CREATE SEQUENCE template_ids;
CREATE TABLE templates (
    id bigint PRIMARY KEY DEFAULT nextval('template_ids'), tenant text COLLATE "C" NOT NULL DEFAULT '',
    name text COLLATE "C" NOT NULL, version integer NOT NULL, sender text NOT NULL, from_field text NOT NULL,
    reply_to text, subject text NOT NULL, body text, html text, headers jsonb NOT NULL DEFAULT '{}', words jsonb NOT NULL DEFAULT '{}',
    UNIQUE (tenant, name, version));
