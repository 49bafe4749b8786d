// register: has names exist on every broker.
import { ask, Backoff, sleep, DIAL_TIMEOUT_MS } from './settings.js';

const WITHIN_MS = 30000;

// Resolves with {complete, final, why}; final: asking again does not help.
export async function register(settings, wanted) {
  const until = Date.now() + WITHIN_MS;
  const waits = new Backoff();
  const body = JSON.stringify({ wanted, alive: true });
  for (;;) {
    const told = { complete: false, final: false };
    try {
      const answer = await ask(settings, { path: '/topology', method: 'POST', body, timeoutMs: 2 * DIAL_TIMEOUT_MS });
      told.why = answer.body.toString();
      told.final = [400, 401, 403, 429].includes(answer.status);
      const said = told.final ? {} : JSON.parse(told.why);
      told.complete = answer.status === 200 && said.complete === true;
      told.final ||= said.mismatch === true;
    } catch (fault) {
      told.why = String(fault);
    }
    if (told.complete || told.final || Date.now() > until) return told;
    await sleep(waits.after());
  }
}
