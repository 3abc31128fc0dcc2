INSERT INTO forget_columns (relation, names, way, condition) VALUES
    -- of a budget with no time in the future a new one is the same
    ('budgets', '{key}', 'row', 'key LIKE ''route:%%'' AND next_at < now() - make_interval(secs => burst / rate)'),
    ('budgets', '{key}', 'named', 'NOT (key LIKE ''route:%%'' AND next_at < now() - make_interval(secs => burst / rate))'),
    ('budgets', '{note}', 'words', 'true');
