package messagebus;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.BlockedListener;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConfirmListener;
import com.rabbitmq.client.Connection;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Date;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;

/** One link to the broker that the balancer gives; each publish ends in one outcome. */
final class Publisher {
    private static final int WINDOW = 256, DEADLINE_MS = 5_000, CONFIRM_SLOW_MS = 1_500, LIFETIME_MS = 600_000, TICK_MS = 50;
    private final Settings settings;
    private final ArrayDeque<Publish> waiting = new ArrayDeque<>();
    private final TreeMap<Long, Publish> flying = new TreeMap<>();
    private final Map<String, Publish> byId = new HashMap<>();
    private final Thread thread = new Thread(this::run);
    private Link link;
    private boolean stopping;

    private static final class Publish {
        String exchange, key;
        BasicProperties properties;
        byte[] body;
        long until, sent;
        boolean returned;
        final CompletableFuture<String> outcome = new CompletableFuture<>();
    }

    private record Link(Connection connection, Channel channel, long ends) {}

    Publisher(Settings settings) {
        this.settings = settings;
        thread.start();
    }

    /** Gives "confirmed", "refused", "unroutable" or "unknown". */
    CompletableFuture<String> publish(String to, byte[] body, BasicProperties properties) {
        String exchange = Settings.exchangeOf(to);
        if (exchange == null) {
            return CompletableFuture.completedFuture("refused");
        }
        return send(exchange, "", body, properties.builder().timestamp(new Date()).build());
    }

    synchronized CompletableFuture<String> send(String exchange, String key, byte[] body, BasicProperties properties) {
        var each = new Publish();
        each.exchange = exchange;
        each.key = key;
        each.body = body;
        each.properties = properties.builder().deliveryMode(2).build();
        each.until = System.currentTimeMillis() + DEADLINE_MS;
        waiting.add(each);
        notifyAll();
        return each.outcome;
    }

    /** Waits until every publish has its outcome. */
    void stop() throws InterruptedException {
        synchronized (this) {
            stopping = true;
            notifyAll();
        }
        thread.join();
    }

    private void run() {
        var waits = new Settings.Backoff();
        while (true) {
            Link made = null;
            synchronized (this) {
                if (stopping && waiting.isEmpty() && flying.isEmpty()) {
                    if (link != null) {
                        Settings.hangUp(link.connection, link.channel);
                    }
                    return;
                }
            }
            if (link == null) {
                expire();
                try {
                    made = dial();
                    waits = new Settings.Backoff();
                } catch (Exception fault) {
                    Settings.sleep(waits.after(fault));
                    continue;
                }
            }
            synchronized (this) {
                link = made == null ? link : made;
                try {
                    pump();
                    wait(TICK_MS);
                } catch (Exception fault) {
                    leave(link);
                }
            }
            expire();
        }
    }

    private Link dial() throws Exception {
        Connection connection = settings.dial(settings.broker);
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        double share = 0.8 + ThreadLocalRandom.current().nextDouble() * 0.4;
        var made = new Link(connection, channel, System.currentTimeMillis() + (long) (LIFETIME_MS * share));
        // Returns and confirms come on one thread, in their order.
        channel.addReturnListener((code, text, exchange, key, properties, body) -> {
            synchronized (this) {
                Publish each = byId.get(properties.getMessageId());
                if (each != null && link == made) {
                    each.returned = true;
                }
            }
        });
        channel.addConfirmListener(new ConfirmListener() {
            @Override public void handleAck(long tag, boolean multiple) { answered(made, tag, multiple, true); }
            @Override public void handleNack(long tag, boolean multiple) { answered(made, tag, multiple, false); }
        });
        channel.addShutdownListener(why -> leave(made));
        connection.addBlockedListener(new BlockedListener() {
            @Override public void handleBlocked(String why) { leave(made); }
            @Override public void handleUnblocked() {}
        });
        return made;
    }

    private synchronized void pump() throws Exception {
        long now = System.currentTimeMillis();
        while (link != null && !waiting.isEmpty() && flying.size() < WINDOW && now < link.ends) {
            Publish each = waiting.peek();
            if (byId.containsKey(each.properties.getMessageId())) {
                return; // a return names the id only: one of an id at a time
            }
            waiting.poll();
            each.sent = now;
            flying.put(link.channel.getNextPublishSeqNo(), each);
            byId.put(each.properties.getMessageId(), each);
            link.channel.basicPublish(each.exchange, each.key, true, each.properties, each.body);
        }
    }

    private synchronized void answered(Link from, long tag, boolean multiple, boolean ack) {
        if (link != from) {
            return;
        }
        var done = multiple ? flying.headMap(tag, true) : flying.subMap(tag, true, tag, true);
        var all = new ArrayList<>(done.values());
        done.clear();
        for (Publish each : all) {
            byId.remove(each.properties.getMessageId());
            each.outcome.complete(!ack ? "refused" : each.returned ? "unroutable" : "confirmed");
        }
        notifyAll();
    }

    private void leave(Link from) {
        var lost = new ArrayList<Publish>();
        synchronized (this) {
            if (from == null || link != from) {
                return;
            }
            link = null;
            lost.addAll(flying.values());
            flying.clear();
            byId.clear();
            notifyAll();
        }
        lost.forEach(each -> each.outcome.complete("unknown"));
        var ending = new Thread(() -> from.connection.abort(500));
        ending.setDaemon(true);
        ending.start();
    }

    private void expire() {
        var late = new ArrayList<Publish>();
        Link old = null;
        synchronized (this) {
            long now = System.currentTimeMillis();
            while (!waiting.isEmpty() && now > waiting.peek().until) {
                late.add(waiting.poll());
            }
            boolean slow = flying.values().stream().anyMatch(each -> now - each.sent > CONFIRM_SLOW_MS);
            if (link != null && (slow || now > link.ends && flying.isEmpty())) {
                old = link;
            }
        }
        leave(old);
        late.forEach(each -> each.outcome.complete("unknown"));
    }
}
