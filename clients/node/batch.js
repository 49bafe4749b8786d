// Batch: several messages in one AMQP message. amqplib keeps its codec to itself.

export const BATCH_TYPE = 'application/vnd.messagebus.batch';
const ENTRIES_MAX = 10000;
const DEPTH_MAX = 32;
const NUMBERS = {
  b: [1, 'readInt8'], B: [1, 'readUInt8'], s: [2, 'readInt16BE'], U: [2, 'readInt16BE'], u: [2, 'readUInt16BE'], I: [4, 'readInt32BE'],
  i: [4, 'readUInt32BE'], l: [8, 'readBigInt64BE'], L: [8, 'readBigInt64BE'], f: [4, 'readFloatBE'], d: [8, 'readDoubleBE'],
};
// From the highest bit down; bit 13 is the headers' table.
const PROPERTIES = ['contentType', 'contentEncoding', 'headers', 'deliveryMode', 'priority', 'correlationId', 'replyTo',
  'expiration', 'messageId', 'timestamp', 'type', 'userId', 'appId', 'clusterId'];

class Reader {
  constructor(raw) { this.raw = raw; this.at = 0; }
  get more() { return this.at < this.raw.length; }
  take(size) {
    if (this.at + size > this.raw.length) throw new Error('cut');
    this.at += size;
    return this.raw.subarray(this.at - size, this.at);
  }
  u8() { return this.take(1)[0]; }
  u32() { return this.take(4).readUInt32BE(); }
  long() { return this.take(this.u32()); }
  short() { return this.take(this.u8()).toString(); }
}

// Returns the entries as [properties, body]; throws when the body is no batch.
export function splitBatch(body) {
  const reader = new Reader(body);
  const entries = [];
  while (reader.more && entries.length < ENTRIES_MAX) entries.push([properties(new Reader(reader.long())), reader.long()]);
  if (!entries.length || reader.more) throw new Error('not a batch');
  return entries;
}

function properties(reader) {
  const flags = reader.take(2).readUInt16BE();
  if (flags & 1) throw new Error('more flags');
  const found = { headers: {}, contentType: 'application/octet-stream' };
  PROPERTIES.forEach((name, number) => {
    if (!(flags & (1 << (15 - number)))) return;
    if (name === 'headers') found.headers = table(new Reader(reader.long()), 0);
    else if (name === 'deliveryMode' || name === 'priority') found[name] = reader.u8();
    else if (name === 'timestamp') found[name] = Number(reader.take(8).readBigUInt64BE());
    else found[name] = reader.short();
  });
  return found;
}

function table(reader, depth) {
  const found = {};
  while (reader.more) {
    const name = reader.short();
    found[name] = value(reader, depth);
  }
  return found;
}

// Values as amqplib reads them, and writes them again.
function value(reader, depth) {
  if (depth > DEPTH_MAX) throw new Error('too deep');
  const kind = String.fromCharCode(reader.u8());
  if (kind in NUMBERS) return Number(reader.take(NUMBERS[kind][0])[NUMBERS[kind][1]]());
  switch (kind) {
    case 't': return reader.u8() !== 0;
    case 'D': return { '!': 'decimal', value: { places: reader.u8(), digits: reader.u32() } };
    case 'T': return { '!': 'timestamp', value: Number(reader.take(8).readBigUInt64BE()) };
    case 'S': return reader.long().toString();
    case 'x': return reader.long();
    case 'F': return table(new Reader(reader.long()), depth + 1);
    case 'A': {
      const inner = new Reader(reader.long());
      const found = [];
      while (inner.more) found.push(value(inner, depth + 1));
      return found;
    }
    case 'V': return null;
    default: throw new Error('unknown type');
  }
}
