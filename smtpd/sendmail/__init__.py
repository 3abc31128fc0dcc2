"""The command `sendmail`: takes a message from standard input and gives it to smtpd by SMTP.

It uses the standard library only, so that it starts fast and stays apart from the daemons.
"""
