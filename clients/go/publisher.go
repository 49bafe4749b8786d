package messagebus

import (
	"context"
	"math/rand"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Outcome is the end of a publish.
type Outcome string

const (
	Confirmed  Outcome = "confirmed"
	Refused    Outcome = "refused"
	Unroutable Outcome = "unroutable"
	Unknown    Outcome = "unknown"

	window      = 256
	deadline    = 5 * time.Second
	confirmSlow = 1500 * time.Millisecond
	lifetime    = 600 * time.Second
	tick        = 100 * time.Millisecond
)

type publish struct {
	exchange, key string
	message       amqp.Publishing
	until, sent   time.Time
	returned      bool
	then          func(Outcome)
}

// Publisher publishes over one link to the broker that the balancer gives. Each publish ends in one outcome.
type Publisher struct {
	settings Settings
	in       chan *publish
	stopping chan chan bool
}

// NewPublisher starts a publisher.
func NewPublisher(s Settings) *Publisher {
	p := &Publisher{s, make(chan *publish, 1000), make(chan chan bool)}
	go p.run()
	return p
}

// Publish sends a message; then is called once, on the publisher's goroutine.
func (p *Publisher) Publish(to string, message amqp.Publishing, then func(Outcome)) {
	exchange, err := exchangeOf(to)
	if err != nil {
		then(Refused)
		return
	}
	message.Timestamp = time.Now()
	p.send(exchange, "", message, then)
}

func (p *Publisher) send(exchange, key string, message amqp.Publishing, then func(Outcome)) {
	message.DeliveryMode = amqp.Persistent
	p.in <- &publish{exchange: exchange, key: key, message: message, until: time.Now().Add(deadline), then: then}
}

// Stop waits until every publish has its outcome.
func (p *Publisher) Stop() {
	done := make(chan bool)
	p.stopping <- done
	<-done
}

type link struct {
	conn    *amqp.Connection
	channel *amqp.Channel
	acks    chan amqp.Confirmation
	returns chan amqp.Return
	closed  chan *amqp.Error
	blocked chan amqp.Blocking
	ends    time.Time
}

func (p *Publisher) dial() (*link, error) {
	conn, err := p.settings.dial(p.settings.Broker)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, closed: make(chan *amqp.Error, 1), blocked: make(chan amqp.Blocking, 10)}
	// Room for all that is in flight: the library drops a notification that waits for 5 s.
	l.acks, l.returns = make(chan amqp.Confirmation, window+1), make(chan amqp.Return, window+1)
	l.ends = time.Now().Add(lifetime*4/5 + time.Duration(rand.Int63n(int64(lifetime*2/5))))
	if l.channel, err = conn.Channel(); err == nil {
		err = l.channel.Confirm(false)
	}
	if err != nil {
		go hangUp(conn, nil)
		return nil, err
	}
	l.channel.NotifyPublish(l.acks)
	l.channel.NotifyReturn(l.returns)
	l.channel.NotifyClose(l.closed)
	conn.NotifyBlocked(l.blocked)
	return l, nil
}

func (p *Publisher) run() {
	var current *link
	var stopped chan bool
	var waits backoff
	waiting, flying := []*publish{}, map[uint64]*publish{}
	byID := map[string]*publish{}
	dialed, ticks, dialing := make(chan *link), time.NewTicker(tick), false
	failed, next := make(chan error), time.Now()
	settle := func(tag uint64, outcome Outcome) {
		each := flying[tag]
		delete(flying, tag)
		if each != nil {
			delete(byID, each.message.MessageId)
			each.then(outcome)
		}
	}
	leave := func() {
		go hangUp(current.conn, nil)
		current = nil
		for tag := range flying {
			settle(tag, Unknown)
		}
	}
	for {
		for current != nil && len(waiting) > 0 && len(flying) < window && time.Now().Before(current.ends) {
			each := waiting[0]
			if byID[each.message.MessageId] != nil {
				break // a return names the id only: one of an id at a time
			}
			waiting = waiting[1:]
			tag := current.channel.GetNextPublishSeqNo()
			each.sent = time.Now()
			flying[tag], byID[each.message.MessageId] = each, each
			err := current.channel.PublishWithContext(context.Background(), each.exchange, each.key, true, false, each.message)
			if err != nil {
				leave()
			}
		}
		if current == nil && !dialing && time.Now().After(next) && (stopped == nil || len(waiting) > 0) {
			dialing = true
			go func() {
				if l, err := p.dial(); err != nil {
					failed <- err
				} else {
					dialed <- l
				}
			}()
		}
		if stopped != nil && len(waiting)+len(flying) == 0 && len(p.in) == 0 && !dialing {
			if current != nil {
				current.conn.CloseDeadline(time.Now().Add(time.Second))
			}
			close(stopped)
			return
		}
		l := current
		if l == nil {
			l = &link{}
		}
		select {
		case each := <-p.in:
			waiting = append(waiting, each)
		case current = <-dialed:
			dialing, waits = false, backoff{}
		case err := <-failed:
			dialing, next = false, time.Now().Add(waits.after(err))
		case r := <-l.returns:
			byID[r.MessageId].returned = true
		case ack := <-l.acks:
			// Returns come before their confirm, on another channel: all that are there belong to it or later ones.
			for more := true; more; {
				select {
				case r := <-l.returns:
					byID[r.MessageId].returned = true
				default:
					more = false
				}
			}
			each := flying[ack.DeliveryTag]
			switch {
			case each == nil:
			case !ack.Ack:
				settle(ack.DeliveryTag, Refused)
			case each.returned:
				settle(ack.DeliveryTag, Unroutable)
			default:
				settle(ack.DeliveryTag, Confirmed)
			}
		case <-l.closed:
			leave()
		case b := <-l.blocked:
			if b.Active {
				leave()
			}
		case stopped = <-p.stopping:
		case now := <-ticks.C:
			for len(waiting) > 0 && now.After(waiting[0].until) {
				each := waiting[0]
				waiting = waiting[1:]
				each.then(Unknown)
			}
			slow := false
			for _, each := range flying {
				slow = slow || now.Sub(each.sent) > confirmSlow
			}
			if current != nil && (slow || (now.After(current.ends) && len(flying) == 0)) {
				leave()
			}
		}
	}
}
