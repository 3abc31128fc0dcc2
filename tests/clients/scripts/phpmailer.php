<?php
// Send a message with PHPMailer; the settings are JSON on standard input.
require "/usr/share/php/libphp-phpmailer/autoload.php";

use PHPMailer\PHPMailer\PHPMailer;

$settings = json_decode(file_get_contents("php://stdin"));
$mail = new PHPMailer(true);
$mail->isSMTP();
$mail->Host = $settings->host;
$mail->Port = $settings->port;
$mail->SMTPAuth = true;
$mail->Username = $settings->user;
$mail->Password = $settings->password;
$mail->SMTPSecure = $settings->implicit ? PHPMailer::ENCRYPTION_SMTPS : PHPMailer::ENCRYPTION_STARTTLS;
$mail->SMTPOptions = ["ssl" => ["cafile" => $settings->ca_file]];
$mail->setFrom($settings->user);
$mail->addAddress($settings->to);
$mail->Subject = "hello";
$mail->Body = $settings->text;
$mail->send();
