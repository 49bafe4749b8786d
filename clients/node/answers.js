// Answers: ack on the link that delivered; retry and park by a copy, confirmed before the ack.

const REASON_BYTES_MAX = 1024;
const STEPS_MS = [1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000, 1200000, 1800000, 3600000,
  7200000, 14400000, 28800000, 43200000, 86400000, 172800000, 345600000, 604800000];
const BROKERS_OWN = /^(x-death|x-(first|last)-death-.*|x-delivery-count|x-acquired-count|CC|BCC|mb-retry-reason)$/;
const COPIED = ['contentType', 'contentEncoding', 'priority', 'correlationId', 'replyTo', 'messageId', 'timestamp', 'type', 'appId'];
const cut = (reason) => Buffer.from(String(reason)).subarray(0, REASON_BYTES_MAX).toString();

// A message as it arrived. outer: shared by the entries of a batch, {left}. link: {live, owed, channel}.
export class Delivery {
  constructor(consumer, broker, link, raw, outer, properties, body) {
    Object.assign(this, { consumer, broker, link, raw, outer, properties, body });
    this.headers = properties.headers || {};
    const attempt = this.headers['mb-attempt'];
    this.attempt = Number.isInteger(attempt) && attempt > 0 ? attempt : 1;
  }

  // False: its link has ended, the message comes again.
  ack() { return this.answer(true); }
  giveBack() { return this.answer(false); }

  answer(isDone) {
    if (this.answered || !this.link.live || this.outer.left <= 0) return false;
    this.answered = true;
    this.outer.left = isDone ? this.outer.left - 1 : 0;
    if (this.outer.left) return true;
    if (isDone) this.link.channel.ack(this.raw);
    else this.link.channel.nack(this.raw, false, true);
    this.link.owed -= 1;
    this.link.settled();
    return true;
  }

  retry(reason, delayMs) {
    const more = { 'mb-attempt': this.attempt + 1, 'mb-retry-reason': cut(reason), 'mb-first-ms': this.firstMs() };
    const step = STEPS_MS.find((each) => each >= delayMs);
    return this.copy(delayMs > 0 ? `mb.delay/${step}` : '', this.consumer.source.queue, more);
  }

  park(reason) {
    return this.copy('', this.consumer.source.park, {
      'mb-park-reason': cut(reason), 'mb-park-attempts': this.attempt, 'mb-park-first-ms': this.firstMs(),
      'mb-park-ms': Date.now(), 'mb-park-broker': this.broker,
    });
  }

  async copy(exchange, key, more) {
    const headers = Object.fromEntries(Object.entries(this.headers).filter(([name]) => !BROKERS_OWN.test(name)));
    const properties = Object.fromEntries(COPIED.map((name) => [name, this.properties[name]]));
    const outcome = await this.consumer.copies.send(exchange, key, this.body, { ...properties, headers: { ...headers, ...more } });
    if (outcome === 'confirmed') return this.ack();
    this.giveBack();
    return false;
  }

  firstMs() {
    const first = this.headers['mb-first-ms'];
    if (Number.isInteger(first)) return first;
    return this.properties.timestamp ? this.properties.timestamp * 1000 : Date.now();
  }
}
