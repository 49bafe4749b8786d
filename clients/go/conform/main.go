// The client under test of `python -m clients.conform`: reads orders, tells events, one JSON object a line.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"messagebus"

	amqp "github.com/rabbitmq/amqp091-go"
)

const finishWithin = 10 * time.Second

type order struct {
	Do, To, From, Key, Tag, Reason string
	Ids, Wanted                    []string
	Bytes, Prefetch                int
	DelayMS                        int64 `json:"delay_ms"`
	Headers                        map[string]any
}

var (
	out  sync.Mutex
	open sync.Map
)

func tell(event map[string]any) {
	line, _ := json.Marshal(event)
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func main() {
	settings := messagebus.FromEnv()
	publisher := messagebus.NewPublisher(settings)
	var consumer *messagebus.Consumer
	ended := make(chan os.Signal, 4)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	orders := make(chan order)
	go func() {
		lines := bufio.NewReader(os.Stdin)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				ended <- syscall.SIGTERM
				return
			}
			var each order
			decoder := json.NewDecoder(bytes.NewReader(line))
			decoder.UseNumber()
			if decoder.Decode(&each) == nil {
				orders <- each
			}
		}
	}()
	tell(map[string]any{"ready": true, "client": "go"})
	stopped := make(chan bool)
	for {
		select {
		case <-stopped:
			publisher.Stop()
			return
		case <-ended:
			go func() {
				if consumer != nil {
					consumer.Stop(finishWithin)
				}
				stopped <- true
			}()
		case each := <-orders:
			switch each.Do {
			case "register":
				go func() {
					complete, final, why := settings.Register(each.Wanted)
					tell(map[string]any{"registered": complete, "final": final, "why": why})
				}()
			case "publish":
				go publishAll(publisher, each)
			case "consume":
				consumer, _ = messagebus.NewConsumer(settings, each.From, each.Prefetch, publisher, deliver())
			case "ack", "retry", "park":
				go answer(each)
			case "stop":
				ended <- syscall.SIGTERM
			}
		}
	}
}

func publishAll(publisher *messagebus.Publisher, each order) {
	for _, id := range each.Ids {
		body := []byte(id)
		if each.Bytes > 0 {
			body = bytes.Repeat(body, each.Bytes/len(body)+1)[:each.Bytes]
		}
		headers := plain(each.Headers).(amqp.Table)
		if each.Key != "" {
			headers["mb-key"] = each.Key
		}
		message := amqp.Publishing{MessageId: id, ContentType: "application/octet-stream", Headers: headers, Body: body}
		publisher.Publish(each.To, message, func(outcome messagebus.Outcome) {
			tell(map[string]any{"id": id, "outcome": outcome})
		})
	}
}

func deliver() func(*messagebus.Delivery) {
	var mu sync.Mutex
	number := 0
	return func(d *messagebus.Delivery) {
		mu.Lock()
		number++
		tag := fmt.Sprint(number)
		mu.Unlock()
		open.Store(tag, d)
		key, _ := d.Headers["mb-key"].(string)
		tell(map[string]any{"delivered": d.MessageId, "tag": tag, "broker": d.Broker, "key": key,
			"headers": d.Headers, "content_type": d.ContentType, "attempt": d.Attempt,
			"sha256": fmt.Sprintf("%x", sha256.Sum256(d.Body))})
	}
}

func answer(each order) {
	found, _ := open.LoadAndDelete(each.Tag)
	d, ok := found.(*messagebus.Delivery)
	if ok {
		switch each.Do {
		case "ack":
			ok = d.Ack()
		case "retry":
			ok = d.Retry(each.DelayMS, each.Reason)
		case "park":
			ok = d.Park(each.Reason)
		}
	}
	tell(map[string]any{"answered": each.Tag, "ok": ok})
}

// plain turns JSON into what amqp091-go writes: whole numbers as int64.
func plain(value any) any {
	switch v := value.(type) {
	case map[string]any:
		found := amqp.Table{}
		for name, each := range v {
			found[name] = plain(each)
		}
		return found
	case []any:
		for at, each := range v {
			v[at] = plain(each)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	}
	return value
}
