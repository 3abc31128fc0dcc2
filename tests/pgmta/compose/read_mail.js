// Read messages with postal-mime: a line of base64 each; answer each with a line of JSON.
const PostalMime = require("postal-mime");

const boxes = (list) => (list || []).map((box) => [box.name, box.address]);
const base64 = (content) => Buffer.from(content).toString("base64");

async function read(line) {
  const mail = await PostalMime.parse(Buffer.from(line, "base64"));
  return {
    from: boxes(mail.from ? [mail.from] : []),
    "reply-to": boxes(mail.replyTo),
    to: boxes(mail.to),
    cc: boxes(mail.cc),
    subject: mail.subject || "",
    headers: mail.headers.map((field) => [field.originalKey || field.key, PostalMime.decodeWords(field.value)]),
    text: mail.text,
    html: mail.html,
    attachments: mail.attachments.map((each) => [
      each.filename, each.mimeType, base64(each.content), each.contentId || null,
    ]),
  };
}

(async () => {
  for await (const line of require("readline").createInterface({ input: process.stdin }))
    console.log(JSON.stringify(await read(line)));
})();
