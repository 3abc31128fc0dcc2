// Send a message with nodemailer; the settings are JSON on standard input.
const nodemailer = require("nodemailer");
const settings = JSON.parse(require("fs").readFileSync(0, "utf-8"));
const transport = nodemailer.createTransport({
  host: settings.host,
  port: settings.port,
  secure: settings.implicit,
  requireTLS: true,
  tls: { ca: settings.ca },
  auth: { user: settings.user, pass: settings.password },
});
transport
  .sendMail({ from: settings.user, to: settings.to, subject: "hello", text: settings.text })
  .then((sent) => console.log(sent.response))
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
