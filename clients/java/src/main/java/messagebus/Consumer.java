package messagebus;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** A link to each broker of the list. */
final class Consumer {
    private static final int REDIAL_MAX_MS = 5_000, APPLIED_HOLD_MS = 1_000, DRAIN_MS = 60_000;
    final String queue, park;
    final Publisher copies;
    private final Settings settings;
    private final int prefetch;
    private final java.util.function.Consumer<Delivery> handle;
    private final Map<String, Listed> brokers = new HashMap<>();
    private final java.util.List<Thread> keeping = new ArrayList<>();
    private final Thread following;
    private boolean stopped;

    Consumer(Settings settings, String from, int prefetch, Publisher copies, java.util.function.Consumer<Delivery> handle) {
        boolean isQueue = from.startsWith("queue:");
        String name = isQueue ? from.substring(6) : from;
        queue = (isQueue ? "mb.queue/" : "mb.sub/") + name;
        park = "mb.park/" + name;
        this.settings = settings;
        this.prefetch = prefetch;
        this.copies = copies;
        this.handle = handle;
        following = List.follow(settings, from, this::apply);
    }

    /** Takes no more, waits for open answers, hangs up. */
    void stop(long withinMs) throws InterruptedException {
        following.interrupt();
        synchronized (this) {
            stopped = true;
            brokers.values().forEach(Listed::leave);
        }
        long until = System.currentTimeMillis() + withinMs;
        for (Thread each : keeping) {
            each.join(Math.max(1, until - System.currentTimeMillis()));
        }
    }

    private void apply(List list) {
        var listed = new ArrayList<Listed>();
        synchronized (this) {
            if (stopped) {
                return;
            }
            brokers.entrySet().removeIf(each -> {
                boolean gone = !list.brokers().contains(each.getKey());
                if (gone) {
                    each.getValue().leave();
                }
                return gone;
            });
            for (String name : list.brokers()) {
                listed.add(brokers.computeIfAbsent(name, Listed::new));
            }
            keeping.removeIf(each -> !each.isAlive());
        }
        long until = System.currentTimeMillis() + APPLIED_HOLD_MS;
        for (Listed each : listed) {
            try {
                each.tried.await(Math.max(0, until - System.currentTimeMillis()), TimeUnit.MILLISECONDS);
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** One broker of the list, until it leaves it. tried: attached, or dialled in vain. */
    private final class Listed {
        final CountDownLatch tried = new CountDownLatch(1), left = new CountDownLatch(1);
        private final String name;

        Listed(String name) {
            this.name = name;
            var thread = new Thread(this::keep);
            thread.setDaemon(true);
            thread.start();
            keeping.add(thread);
        }

        void leave() {
            left.countDown();
        }

        private boolean isListed() {
            return left.getCount() > 0;
        }

        private void keep() {
            var waits = new Settings.Backoff();
            while (isListed()) {
                long began = System.currentTimeMillis();
                Exception fault = null;
                try {
                    once();
                    waits = System.currentTimeMillis() - began >= REDIAL_MAX_MS ? new Settings.Backoff() : waits;
                } catch (Exception trouble) {
                    fault = trouble;
                }
                tried.countDown();
                try {
                    left.await(waits.after(fault), TimeUnit.MILLISECONDS);
                } catch (InterruptedException stop) {
                    return;
                }
            }
        }

        /** Consumes until the link ends, or the broker left the list and nothing is owed. */
        private void once() throws Exception {
            Connection connection = settings.dial(name);
            var link = new Delivery.Link();
            try {
                Channel channel = link.channel = connection.createChannel();
                channel.basicQos(prefetch);
                channel.addShutdownListener(why -> end(link));
                String tag = channel.basicConsume(queue, false, new DefaultConsumer(channel) {
                    @Override
                    public void handleDelivery(String t, Envelope envelope, BasicProperties properties, byte[] body) {
                        if (isListed()) {
                            deliver(link, envelope.getDeliveryTag(), properties, body);
                        }
                    }

                    @Override
                    public void handleCancel(String t) {
                        end(link);
                    }
                });
                tried.countDown();
                while (isListed() && link.live) {
                    left.await(20, TimeUnit.MILLISECONDS);
                }
                if (link.live) {
                    channel.basicCancel(tag);
                }
                long until = System.currentTimeMillis() + DRAIN_MS;
                synchronized (link) {
                    while (link.live && link.owed > 0 && System.currentTimeMillis() < until) {
                        link.wait(20);
                    }
                    link.live = false;
                }
            } finally {
                Settings.hangUp(connection, link.channel);
            }
        }

        private void end(Delivery.Link link) {
            synchronized (link) {
                link.live = false;
                link.notifyAll();
            }
        }

        private void deliver(Delivery.Link link, long tag, BasicProperties properties, byte[] body) {
            synchronized (link) {
                link.owed++;
            }
            var whole = new Delivery(Consumer.this, name, link, new Delivery.Outer(tag, 1), properties, body);
            if (!Batch.TYPE.equals(properties.getContentType())) {
                handle.accept(whole);
                return;
            }
            try {
                var entries = Batch.split(body);
                var outer = new Delivery.Outer(tag, entries.size());
                for (var each : entries) {
                    var own = each.properties().getTimestamp() != null ? each.properties()
                            : each.properties().builder().timestamp(properties.getTimestamp()).build();
                    handle.accept(new Delivery(Consumer.this, name, link, outer, own, each.body()));
                }
            } catch (Exception fault) {
                // Not on this thread, which reads the link.
                new Thread(() -> whole.park("no batch: " + fault.getMessage())).start();
            }
        }
    }
}
