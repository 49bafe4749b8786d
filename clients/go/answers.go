package messagebus

import (
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const reasonBytesMax = 1024

// Steps are the delays that exist, in ms.
var Steps = []int64{1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000, 1200000, 1800000,
	3600000, 7200000, 14400000, 28800000, 43200000, 86400000, 172800000, 345600000, 604800000}

// Ack answers on the link that delivered. False: that link has ended, the message comes again.
func (d *Delivery) Ack() bool { return d.answer(true) }

// GiveBack has the broker deliver it again; of a batch, all of it.
func (d *Delivery) GiveBack() bool { return d.answer(false) }

func (d *Delivery) answer(ack bool) (ok bool) {
	d.once.Do(func() {
		d.link.mu.Lock()
		defer d.link.mu.Unlock()
		if !d.link.live {
			return
		}
		ok = true
		if d.outer.left--; d.outer.left > 0 && ack {
			return
		}
		if d.outer.left < 0 {
			return
		}
		d.outer.left = 0
		if ack {
			ok = d.link.channel.Ack(d.tag, false) == nil
		} else {
			ok = d.link.channel.Nack(d.tag, false, true) == nil
		}
		if d.link.owed--; d.link.owed == 0 {
			select {
			case d.link.empty <- true:
			default:
			}
		}
	})
	return
}

// Retry has it come again after a while, to this subscription only: a copy, confirmed, then the ack.
func (d *Delivery) Retry(delayMS int64, reason string) bool {
	headers := d.copied()
	headers["mb-attempt"], headers["mb-retry-reason"] = d.Attempt+1, cut(reason)
	headers["mb-first-ms"] = d.firstMS()
	if delayMS <= 0 {
		return d.copy("", d.source.queue, headers)
	}
	for _, step := range Steps {
		if step >= delayMS {
			return d.copy(fmt.Sprintf("mb.delay/%d", step), d.source.queue, headers)
		}
	}
	return false
}

// Park puts it where nobody will try it again, with the reason.
func (d *Delivery) Park(reason string) bool {
	headers := d.copied()
	headers["mb-park-reason"], headers["mb-park-attempts"] = cut(reason), d.Attempt
	headers["mb-park-first-ms"], headers["mb-park-ms"] = d.firstMS(), time.Now().UnixMilli()
	headers["mb-park-broker"] = d.Broker
	return d.copy("", d.source.park, headers)
}

func (d *Delivery) copy(exchange, key string, headers amqp.Table) bool {
	stored := make(chan Outcome, 1)
	d.copies.send(exchange, key, amqp.Publishing{
		Headers: headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp,
		Type: d.Type, AppId: d.AppId, Body: d.Body,
	}, func(outcome Outcome) { stored <- outcome })
	if <-stored != Confirmed {
		d.GiveBack()
		return false
	}
	return d.Ack()
}

// copied returns the headers without those that the broker, or an earlier copy, added.
func (d *Delivery) copied() amqp.Table {
	headers := amqp.Table{}
	maps.Copy(headers, d.Headers)
	for _, name := range []string{"x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
		"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason", "x-delivery-count", "x-acquired-count",
		"CC", "BCC", "mb-retry-reason"} {
		delete(headers, name)
	}
	return headers
}

func (d *Delivery) firstMS() int64 {
	if first, isSaid := whole(d.Headers["mb-first-ms"]); isSaid {
		return first
	}
	if d.Timestamp.IsZero() {
		return time.Now().UnixMilli()
	}
	return d.Timestamp.UnixMilli()
}

// whole reads a number of any integer type: each client library writes another one.
func whole(value any) (int64, bool) {
	switch n := value.(type) {
	case int8:
		return int64(n), true
	case uint8:
		return int64(n), true
	case int16:
		return int64(n), true
	case uint16:
		return int64(n), true
	case int32:
		return int64(n), true
	case uint32:
		return int64(n), true
	case int64:
		return n, true
	}
	return 0, false
}

func cut(reason string) string {
	if len(reason) > reasonBytesMax {
		return reason[:reasonBytesMax]
	}
	return reason
}
