// List: waiting fetch, parse, keep the last good one, tell what was applied.
import { ask, Backoff, sleep, BODY_BYTES_MAX, DIAL_TIMEOUT_MS } from './settings.js';

const WAIT_S = 30;
const ASK_EVERY_MS = 1000;
const HOST = /^(?!.*\.\.|.*[^.]{64})([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])$/;
const isPort = (text) => /^[0-9]{1,5}$/.test(text) && Number(text) >= 1 && Number(text) <= 65535;

// Reads a list; one bad line throws.
export function parseList(raw) {
  if (raw.length > BODY_BYTES_MAX) throw new Error('too large');
  const said = {};
  const brokers = new Set();
  for (let line of new TextDecoder('utf-8', { fatal: true }).decode(raw).split('\n')) {
    line = line.trim();
    const header = /^#\s*(cluster|generation)\s*:\s*(.*)$/.exec(line);
    if (header) {
      const good = header[1] === 'cluster' ? /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/ : /^[0-9]{1,18}$/;
      if (header[1] in said || !good.test(header[2])) throw new Error(`bad header ${line}`);
      said[header[1]] = header[2];
      continue;
    }
    const words = line.split('#')[0].split(/\s+/).filter(Boolean);
    if (!words.length) continue;
    for (const word of words.slice(1)) {
      if (word !== 'draining' && !(word.startsWith('agent=') && isPort(word.slice(6)))) throw new Error(`bad attribute ${word}`);
    }
    let broker = words[0];
    if (!broker.includes(':') || broker.endsWith(']')) broker += ':5672';
    const at = broker.lastIndexOf(':');
    if (at > 253 || !HOST.test(broker.slice(0, at)) || !isPort(broker.slice(at + 1)) || brokers.has(broker)) throw new Error(`bad broker ${broker}`);
    brokers.add(broker);
  }
  if (!brokers.size) throw new Error('no broker in it');
  return { cluster: said.cluster || '', generation: Number(said.generation || 0), brokers: [...brokers] };
}

// Follows the list until stopped. apply(list) ends when each of its brokers was tried.
export class List {
  constructor(settings, subscription, apply) {
    Object.assign(this, { settings, subscription, apply, applied: 0, known: undefined, aborting: new AbortController() });
    this.follow();
  }

  stop() {
    this.stopped = true;
    this.aborting.abort();
  }

  async follow() {
    let failures = new Backoff();
    while (!this.stopped) {
      const asked = Date.now();
      try {
        const list = await this.fetch();
        if (this.stopped) return;
        if (list && !(this.known && list.generation === this.known.generation && list.generation)) {
          this.known = list;
          await this.apply(list);
          this.applied = list.generation;
        } else await sleep(Math.max(0, asked + ASK_EVERY_MS - Date.now()));
        failures = new Backoff();
      } catch (fault) {
        await sleep(failures.after(fault));
      }
    }
  }

  async fetch() {
    const query = new URLSearchParams({ client: this.settings.clientId, subscription: this.subscription, applied: this.applied });
    if (this.known) {
      query.set('generation', this.known.generation);
      query.set('wait_s', WAIT_S);
    }
    const path = `${new URL(this.settings.listUrl).pathname}?${query}`;
    const { status, body } = await ask(this.settings, { path, timeoutMs: WAIT_S * 1000 + DIAL_TIMEOUT_MS, signal: this.aborting.signal });
    if (status === 304) return undefined;
    if (status !== 200) throw new Error(`HTTP ${status}`);
    const list = parseList(body);
    if (this.known && list.generation < this.known.generation) throw new Error('older');
    if (this.settings.cluster && list.cluster !== this.settings.cluster) throw new Error('of another cluster');
    return list;
  }
}
