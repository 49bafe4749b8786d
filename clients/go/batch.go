package messagebus

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// BatchType is the content type of several messages in one.
const BatchType = "application/vnd.messagebus.batch"

const entriesMax, depthMax = 10_000, 32

var errBatch = errors.New("not a batch")

// reader reads big-endian values; what is not there panics with errBatch.
type reader struct{ raw []byte }

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.raw) {
		panic(errBatch)
	}
	part := r.raw[:n]
	r.raw = r.raw[n:]
	return part
}
func (r *reader) u8() byte      { return r.take(1)[0] }
func (r *reader) u16() uint16   { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) u32() uint32   { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64   { return binary.BigEndian.Uint64(r.take(8)) }
func (r *reader) short() string { return string(r.take(int(r.u8()))) }
func (r *reader) long() []byte  { return r.take(int(r.u32())) }

// SplitBatch returns the entries of a batch.
func SplitBatch(body []byte) (entries []amqp.Delivery, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			entries, err = nil, errBatch
		}
	}()
	r := &reader{body}
	for len(r.raw) > 0 && len(entries) < entriesMax {
		entry := properties(&reader{r.long()})
		entry.Body = r.long()
		entries = append(entries, entry)
	}
	if len(entries) == 0 || len(r.raw) > 0 {
		return nil, errBatch
	}
	return entries, nil
}

// properties reads a property list: two bytes of flags, then what they name, highest bit first.
func properties(r *reader) (d amqp.Delivery) {
	flags := r.u16()
	has := func(bit int) bool { return flags&(1<<bit) != 0 }
	text := func(bit int, into *string) {
		if has(bit) {
			*into = r.short()
		}
	}
	if flags&1 != 0 {
		panic(errBatch) // more flags follow: AMQP has none
	}
	d.ContentType = "application/octet-stream"
	text(15, &d.ContentType)
	text(14, &d.ContentEncoding)
	if has(13) {
		d.Headers = table(&reader{r.long()}, 0)
	}
	if has(12) {
		d.DeliveryMode = r.u8()
	}
	if has(11) {
		d.Priority = r.u8()
	}
	text(10, &d.CorrelationId)
	text(9, &d.ReplyTo)
	text(8, &d.Expiration)
	text(7, &d.MessageId)
	if has(6) {
		d.Timestamp = time.Unix(int64(r.u64()), 0)
	}
	text(5, &d.Type)
	text(4, &d.UserId)
	text(3, &d.AppId)
	var clusterID string
	text(2, &clusterID)
	return d
}

func table(r *reader, depth int) amqp.Table {
	found := amqp.Table{}
	for len(r.raw) > 0 {
		name := r.short()
		found[name] = value(r, depth)
	}
	return found
}

func value(r *reader, depth int) any {
	if depth > depthMax {
		panic(errBatch)
	}
	switch r.u8() {
	case 't':
		return r.u8() != 0
	case 'b':
		return int8(r.u8())
	case 'B':
		return r.u8()
	case 's', 'U':
		return int16(r.u16())
	case 'u':
		return r.u16()
	case 'I':
		return int32(r.u32())
	case 'i':
		return r.u32()
	case 'l', 'L':
		return int64(r.u64())
	case 'f':
		return math.Float32frombits(r.u32())
	case 'd':
		return math.Float64frombits(r.u64())
	case 'D':
		return amqp.Decimal{Scale: r.u8(), Value: int32(r.u32())}
	case 'T':
		return time.Unix(int64(r.u64()), 0)
	case 'S':
		return string(r.long())
	case 'x':
		return r.long()
	case 'F':
		return table(&reader{r.long()}, depth+1)
	case 'A':
		inner, found := &reader{r.long()}, []any{}
		for len(inner.raw) > 0 {
			found = append(found, value(inner, depth+1))
		}
		return found
	case 'V':
		return nil
	}
	panic(errBatch)
}
