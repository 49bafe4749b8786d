// Package messagebus is the smallest client that passes the conformance kit: docs/WIRE.md in Go.
package messagebus

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	dialTimeout              = 5 * time.Second
	heartbeat                = 10 * time.Second
	redialFirst, redialMax   = 100 * time.Millisecond, 5 * time.Second
	refusedFirst, refusedMax = time.Second, 30 * time.Second
)

// Settings are those of docs/reference/settings.md that a client needs.
type Settings struct {
	Broker, ListURL, User, PasswordFile, Cluster, ClientID string
	TLS                                                    bool
	CAFile, CertFile, KeyFile, ServerName                  string
}

// FromEnv reads the MESSAGEBUS_ variables.
func FromEnv() Settings {
	e := func(name string) string { return os.Getenv("MESSAGEBUS_" + name) }
	return Settings{e("BROKER"), e("LIST_URL"), e("USER"), e("PASSWORD_FILE"), e("CLUSTER"), e("CLIENT_ID"),
		e("TLS") == "true", e("TLS_CA_FILE"), e("TLS_CERT_FILE"), e("TLS_KEY_FILE"), e("TLS_SERVER_NAME")}
}

// password is read at every dial: it may have changed.
func (s Settings) password() string {
	text, _ := os.ReadFile(s.PasswordFile)
	return strings.TrimSpace(string(text))
}

func (s Settings) tlsConfig(name string) (*tls.Config, error) {
	if !s.TLS {
		return nil, nil
	}
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: name}
	config.RootCAs.AppendCertsFromPEM(pem)
	if s.CertFile != "" {
		own, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// dial opens a connection that does not reconnect by itself: Recovery stays nil.
func (s Settings) dial(broker string) (*amqp.Connection, error) {
	name, _, err := net.SplitHostPort(broker)
	if err != nil {
		return nil, err
	}
	if broker == s.Broker && s.ServerName != "" {
		name = s.ServerName
	}
	secure, err := s.tlsConfig(name)
	if err != nil {
		return nil, err
	}
	scheme := "amqp://"
	if secure != nil {
		scheme = "amqps://"
	}
	return amqp.DialConfig(scheme+broker+"/", amqp.Config{
		SASL:            []amqp.Authentication{&amqp.PlainAuth{Username: s.User, Password: s.password()}},
		Heartbeat:       heartbeat,
		TLSClientConfig: secure,
		Dial:            amqp.DefaultDial(dialTimeout),
		Properties:      amqp.Table{"connection_name": s.ClientID},
	})
}

// hangUp ends a connection. Its channel first: a connection that is closed at once may take the last acks with it.
func hangUp(c *amqp.Connection, channel *amqp.Channel) {
	done := make(chan bool)
	go func() {
		if channel != nil {
			channel.Close()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Second): // a broker that does not answer
	}
	c.CloseDeadline(time.Now().Add(time.Second))
}

// backoff counts failures in a row and gives the wait after each.
type backoff struct{ failures, refusals int }

func (b *backoff) after(err error) time.Duration {
	first, most, n := redialFirst, redialMax, &b.failures
	if errors.Is(err, amqp.ErrCredentials) {
		first, most, n = refusedFirst, refusedMax, &b.refusals
		fmt.Fprintln(os.Stderr, "login refused:", err)
	}
	wait := most
	if *n < 10 {
		wait = min(first<<*n, most)
	}
	*n++
	return wait/2 + time.Duration(rand.Int63n(int64(wait/2)+1))
}

var goodName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}$`)

func checkName(name string) error {
	if !goodName.MatchString(name) || strings.HasPrefix(name, "amq.") || strings.HasPrefix(name, "mb.") {
		return errors.New("not a name: " + name)
	}
	return nil
}

// exchangeOf returns what a destination is published to: "orders", "queue:jobs".
func exchangeOf(to string) (string, error) {
	if name, isQueue := strings.CutPrefix(to, "queue:"); isQueue {
		return "mb.to/" + name, checkName(name)
	}
	return "mb.topic/" + to, checkName(to)
}

// source is what is consumed from: its queue, and the queue for what nobody will try again.
type source struct{ queue, park string }

func sourceOf(from string) (source, error) {
	if name, isQueue := strings.CutPrefix(from, "queue:"); isQueue {
		return source{"mb.queue/" + name, "mb.park/" + name}, checkName(name)
	}
	topic, subscription, _ := strings.Cut(from, "/")
	return source{"mb.sub/" + from, "mb.park/" + from}, errors.Join(checkName(topic), checkName(subscription))
}
