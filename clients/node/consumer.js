// Consumer: a link to each broker of the list.
import { List } from './list.js';
import { Delivery } from './answers.js';
import { BATCH_TYPE, splitBatch } from './batch.js';
import { dial, hangUp, Backoff, sleep, sourceOf } from './settings.js';

const REDIAL_MAX_MS = 5000;
const APPLIED_HOLD_MS = 1000;

export class Consumer {
  // copies: the publisher of retries and parked messages. handle(delivery).
  constructor(settings, from, prefetch, copies, handle) {
    Object.assign(this, { settings, source: sourceOf(from), prefetch, copies, handle, brokers: new Map(), keeping: new Set() });
    this.list = new List(settings, from, (list) => this.apply(list));
  }

  // Takes no more, waits for open answers, hangs up.
  async stop(withinMs) {
    this.list.stop();
    for (const broker of this.brokers.values()) broker.leave();
    this.brokers.clear();
    await Promise.race([Promise.all(this.keeping), sleep(withinMs)]);
  }

  async apply(list) {
    for (const [name, broker] of this.brokers) {
      if (list.brokers.includes(name)) continue;
      broker.leave();
      this.brokers.delete(name);
    }
    for (const name of list.brokers) {
      if (this.brokers.has(name)) continue;
      const broker = new Listed(this, name);
      this.brokers.set(name, broker);
      const kept = broker.keep().finally(() => this.keeping.delete(kept));
      this.keeping.add(kept);
    }
    const tried = Promise.all([...this.brokers.values()].map((broker) => broker.tried));
    await Promise.race([tried, sleep(APPLIED_HOLD_MS)]);
  }
}

// One broker of the list, until it leaves it. tried: attached, or dialled in vain.
class Listed {
  constructor(consumer, name) {
    Object.assign(this, { consumer, name, isListed: true });
    this.tried = new Promise((done) => { this.wasTried = done; });
    this.left = new Promise((done) => { this.onLeave = done; });
  }

  leave() {
    this.isListed = false;
    this.onLeave();
  }

  async keep() {
    let waits = new Backoff();
    while (this.isListed) {
      const began = Date.now();
      const fault = await this.once().catch((trouble) => trouble);
      if (!fault && Date.now() - began >= REDIAL_MAX_MS) waits = new Backoff();
      this.wasTried();
      if (this.isListed) await Promise.race([sleep(waits.after(fault)), this.left]);
    }
  }

  // Consumes until the link ends, or the broker left the list and nothing is owed.
  async once() {
    const { consumer } = this;
    const connection = await dial(consumer.settings, this.name);
    let channel;
    try {
      channel = await connection.createChannel();
      const link = { channel, live: true, owed: 0, settled: () => {} };
      const ended = new Promise((done) => {
        for (const target of [connection, channel]) {
          target.on('close', () => { link.live = false; done(); });
        }
        channel.on('error', () => {});
        link.cancelled = done;
      });
      await channel.prefetch(consumer.prefetch);
      const { consumerTag } = await channel.consume(consumer.source.queue, (raw) => {
        if (raw === null) { link.live = false; link.cancelled(); } // basic.cancel
        else if (this.isListed) this.deliver(link, raw);
      });
      this.wasTried();
      await Promise.race([ended, this.left]);
      if (!link.live) return;
      await channel.cancel(consumerTag);
      const answered = new Promise((done) => { link.settled = () => link.owed === 0 && done(); });
      link.settled();
      await Promise.race([ended, answered]);
    } finally {
      await hangUp(connection, channel);
    }
  }

  deliver(link, raw) {
    const { consumer } = this;
    link.owed += 1;
    const whole = new Delivery(consumer, this.name, link, raw, { left: 1 }, raw.properties, raw.content);
    if (raw.properties.contentType !== BATCH_TYPE) {
      consumer.handle(whole);
      return;
    }
    let entries;
    try {
      entries = splitBatch(raw.content);
    } catch (fault) {
      whole.park(`no batch: ${fault.message}`);
      return;
    }
    const outer = { left: entries.length };
    for (const [properties, body] of entries) {
      const known = { timestamp: raw.properties.timestamp, ...properties };
      consumer.handle(new Delivery(consumer, this.name, link, raw, outer, known, body));
    }
  }
}
