// Send a message with net/smtp; the settings are JSON on standard input.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net/smtp"
	"os"
)

type settings struct {
	Host, Ca, User, Password, To, Text string
	Port                               int
	Implicit                           bool
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	var s settings
	check(json.NewDecoder(os.Stdin).Decode(&s))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(s.Ca))
	config := &tls.Config{ServerName: s.Host, RootCAs: roots}
	address := fmt.Sprintf("%s:%d", s.Host, s.Port)
	var client *smtp.Client
	var err error
	if s.Implicit {
		connection, failed := tls.Dial("tcp", address, config)
		check(failed)
		client, err = smtp.NewClient(connection, s.Host)
		check(err)
	} else {
		client, err = smtp.Dial(address)
		check(err)
		check(client.StartTLS(config))
	}
	check(client.Auth(smtp.PlainAuth("", s.User, s.Password, s.Host)))
	check(client.Mail(s.User))
	check(client.Rcpt(s.To))
	writer, err := client.Data()
	check(err)
	fmt.Fprintf(writer, "From: %s\nTo: %s\nSubject: hello\n\n%s", s.User, s.To, s.Text)
	check(writer.Close())
	check(client.Quit())
}
