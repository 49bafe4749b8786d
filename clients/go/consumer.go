package messagebus

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Delivery is a message as it arrived, with its answer.
type Delivery struct {
	amqp.Delivery
	Broker  string
	Attempt int64
	link    *consuming
	tag     uint64
	outer   *outer
	once    sync.Once
	copies  *Publisher
	source  source
}

// outer counts the entries of a batch that have no answer yet.
type outer struct{ left int }

// Consumer consumes one subscription or queue from every broker of the list.
type Consumer struct {
	settings Settings
	source   source
	prefetch int
	handle   func(*Delivery)
	copies   *Publisher
	mu       sync.Mutex
	brokers  map[string]*broker
	stop     context.CancelFunc
	ended    sync.WaitGroup
}

// broker is one broker of the list. tried: attached, or dialled in vain. leave: it left the list.
type broker struct {
	name  string
	tried chan bool
	leave context.CancelFunc
}

// consuming is one link. owed: deliveries without an answer.
type consuming struct {
	mu      sync.Mutex
	channel *amqp.Channel
	live    bool
	owed    int
	empty   chan bool
}

// NewConsumer starts a consumer. handle is called from one goroutine a broker.
func NewConsumer(s Settings, from string, prefetch int, copies *Publisher, handle func(*Delivery)) (*Consumer, error) {
	source, err := sourceOf(from)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Consumer{settings: s, source: source, prefetch: prefetch, handle: handle, copies: copies,
		brokers: map[string]*broker{}, stop: stop}
	go s.follow(ctx, from, func(list *List) { c.apply(ctx, list) }, c.attached)
	return c, nil
}

// Stop takes no more, waits for open answers, hangs up.
func (c *Consumer) Stop(within time.Duration) {
	c.stop()
	done := make(chan bool)
	go func() { c.ended.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(within):
	}
}

func (c *Consumer) apply(ctx context.Context, list *List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	listed := map[string]bool{}
	for _, name := range list.Brokers {
		listed[name] = true
		if c.brokers[name] == nil && ctx.Err() == nil {
			own, leave := context.WithCancel(ctx)
			b := &broker{name: name, tried: make(chan bool), leave: leave}
			c.brokers[name] = b
			c.ended.Add(1)
			go func() { defer c.ended.Done(); c.keep(own, b) }()
		}
	}
	for name, b := range c.brokers {
		if !listed[name] {
			b.leave()
			delete(c.brokers, name)
		}
	}
}

// attached waits until every broker of the list was tried, or for the given time.
func (c *Consumer) attached(within time.Duration) {
	c.mu.Lock()
	brokers := make([]*broker, 0, len(c.brokers))
	for _, b := range c.brokers {
		brokers = append(brokers, b)
	}
	c.mu.Unlock()
	until := time.After(within)
	for _, b := range brokers {
		select {
		case <-b.tried:
		case <-until:
			return
		}
	}
}

// keep keeps a link to one broker until it leaves the list.
func (c *Consumer) keep(ctx context.Context, b *broker) {
	var waits backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := c.once(ctx, b)
		if time.Since(began) >= redialMax && err == nil {
			waits = backoff{}
		}
		sleep(ctx, waits.after(err))
	}
}

func (b *broker) wasTried() {
	select {
	case <-b.tried:
	default:
		close(b.tried)
	}
}

// once opens a link and consumes until it ends, or the broker leaves the list and nothing is owed.
func (c *Consumer) once(ctx context.Context, b *broker) error {
	defer b.wasTried()
	conn, err := c.settings.dial(b.name)
	if err != nil {
		return err
	}
	var channel *amqp.Channel
	defer func() { hangUp(conn, channel) }()
	if channel, err = conn.Channel(); err != nil {
		return err
	}
	if err = channel.Qos(c.prefetch, 0, false); err != nil {
		return err
	}
	arrived, err := channel.Consume(c.source.queue, c.settings.ClientID, false, false, false, false, nil)
	if err != nil {
		return err
	}
	b.wasTried()
	link := &consuming{channel: channel, live: true, empty: make(chan bool, 1)}
	left := ctx.Done()
	for {
		select {
		case d, more := <-arrived:
			if !more { // the link ended, or the broker cancelled
				if left != nil || !link.waitEmpty(conn) {
					link.end()
				}
				return nil
			}
			if left != nil { // after a cancel: it goes back when the link closes
				c.deliver(b, link, d)
			}
		case <-left:
			left = nil
			if err := channel.Cancel(c.settings.ClientID, false); err != nil {
				link.end()
				return err
			}
		}
	}
}

// waitEmpty waits until all is answered. False: the connection ended before.
func (l *consuming) waitEmpty(conn *amqp.Connection) bool {
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	for {
		l.mu.Lock()
		owed := l.owed
		l.mu.Unlock()
		if owed == 0 {
			return true
		}
		select {
		case <-closed:
			return false
		case <-l.empty:
		}
	}
}

func (l *consuming) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live = false
}

func (c *Consumer) deliver(b *broker, link *consuming, d amqp.Delivery) {
	link.mu.Lock()
	link.owed++
	link.mu.Unlock()
	entries := []amqp.Delivery{d}
	if d.ContentType == BatchType {
		split, err := SplitBatch(d.Body)
		if err != nil {
			whole := c.delivery(b, link, d, d.DeliveryTag, &outer{1})
			whole.Park("no batch: " + err.Error())
			return
		}
		entries = split
	}
	batch := &outer{len(entries)}
	for _, entry := range entries {
		if entry.Timestamp.IsZero() {
			entry.Timestamp = d.Timestamp
		}
		entry.Redelivered = d.Redelivered
		c.handle(c.delivery(b, link, entry, d.DeliveryTag, batch))
	}
}

func (c *Consumer) delivery(b *broker, link *consuming, d amqp.Delivery, tag uint64, batch *outer) *Delivery {
	attempt, isSaid := whole(d.Headers["mb-attempt"])
	if !isSaid || attempt < 1 {
		attempt = 1
	}
	return &Delivery{Delivery: d, Broker: b.name, Attempt: attempt, link: link, tag: tag, outer: batch,
		copies: c.copies, source: c.source}
}
