// Publisher: one link to the broker that the balancer gives; each publish ends in one outcome.
import { dial, hangUp, Backoff, sleep, exchangeOf } from './settings.js';

const WINDOW = 256;
const DEADLINE_MS = 5000;
const CONFIRM_SLOW_MS = 1500;
const LIFETIME_MS = 600000;
const TICK_MS = 100;

export class Publisher {
  constructor(settings) {
    Object.assign(this, { settings, waiting: [], flying: new Map(), link: undefined, waits: new Backoff(), stopping: undefined });
    this.ticks = setInterval(() => this.tick(), TICK_MS);
    this.redial();
  }

  // Resolves with "confirmed", "refused", "unroutable" or "unknown".
  publish(to, body, properties) {
    const exchange = exchangeOf(to);
    if (!exchange) return Promise.resolve('refused');
    return this.send(exchange, '', body, { timestamp: Math.floor(Date.now() / 1000), ...properties });
  }

  send(exchange, key, body, properties) {
    return new Promise((then) => {
      const until = Date.now() + DEADLINE_MS;
      this.waiting.push({ exchange, key, body, properties: { ...properties, persistent: true, mandatory: true }, until, then });
      this.pump();
    });
  }

  // Resolves when every publish has its outcome.
  async stop() {
    this.stopping = true;
    while (this.waiting.length || this.flying.size) await sleep(TICK_MS / 10);
    clearInterval(this.ticks);
    if (this.link) await Promise.race([this.link.connection.close().catch(() => {}), sleep(1000)]);
  }

  async redial() {
    while (!this.link && (!this.stopping || this.waiting.length)) {
      let connection;
      try {
        connection = await dial(this.settings, this.settings.broker);
        const channel = await connection.createConfirmChannel();
        const link = { connection, channel, ends: Date.now() + LIFETIME_MS * (0.8 + Math.random() * 0.4) };
        channel.on('error', () => {});
        // amqplib keeps the order of returns and confirms, and tells both on one thread.
        channel.on('return', (message) => {
          const each = this.flying.get(message.properties.messageId);
          if (each) each.returned = true;
        });
        for (const target of [channel, connection]) target.on('close', () => this.leave(link));
        connection.on('blocked', () => this.leave(link));
        this.link = link;
        this.waits = new Backoff();
      } catch (fault) {
        hangUp(connection);
        await sleep(this.waits.after(fault));
      }
    }
    this.pump();
  }

  pump() {
    const link = this.link;
    while (link && link === this.link && this.waiting.length && this.flying.size < WINDOW && Date.now() < link.ends) {
      const each = this.waiting[0];
      const id = each.properties.messageId;
      if (this.flying.has(id)) return; // a return names the id only: one of an id at a time
      this.waiting.shift();
      each.sent = Date.now();
      this.flying.set(id, each);
      try {
        link.channel.publish(each.exchange, each.key, each.body, each.properties, (fault) => {
          // amqplib calls back with an error for a nack, and for all that is open when the channel ends.
          if (this.flying.get(id) !== each || this.link !== link) return;
          this.settle(id, fault ? (/nacked/.test(fault.message) ? 'refused' : 'unknown') : each.returned ? 'unroutable' : 'confirmed');
          this.pump();
        });
      } catch {
        this.leave(link);
      }
    }
  }

  settle(id, outcome) {
    const each = this.flying.get(id);
    this.flying.delete(id);
    each.then(outcome);
  }

  leave(link) {
    if (this.link !== link) return;
    this.link = undefined;
    hangUp(link.connection);
    for (const id of [...this.flying.keys()]) this.settle(id, 'unknown');
    this.redial();
  }

  tick() {
    const now = Date.now();
    while (this.waiting.length && now > this.waiting[0].until) this.waiting.shift().then('unknown');
    const slow = [...this.flying.values()].some((each) => now - each.sent > CONFIRM_SLOW_MS);
    if (this.link && (slow || (now > this.link.ends && !this.flying.size))) this.leave(this.link);
  }
}
