package messagebus;

import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;

/** Answers: ack on the link that delivered; retry and park by a copy, confirmed before the ack. */
final class Delivery {
    private static final int REASON_MAX = 1_024;
    private static final long[] STEPS_MS = {1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000, 1200000,
        1800000, 3600000, 7200000, 14400000, 28800000, 43200000, 86400000, 172800000, 345600000, 604800000};
    private static final Pattern BROKERS_OWN =
            Pattern.compile("x-death|x-(first|last)-death-.*|x-delivery-count|x-acquired-count|CC|BCC|mb-retry-reason");

    /** One link's deliveries without an answer. */
    static final class Link {
        Channel channel;
        boolean live = true;
        int owed;
    }

    /** A message, shared by the entries of a batch. */
    static final class Outer {
        final long tag;
        int left;

        Outer(long tag, int left) {
            this.tag = tag;
            this.left = left;
        }
    }

    final String broker;
    final BasicProperties properties;
    final byte[] body;
    final Map<String, Object> headers;
    final long attempt;
    private final Consumer consumer;
    private final Link link;
    private final Outer outer;
    private boolean answered;

    Delivery(Consumer consumer, String broker, Link link, Outer outer, BasicProperties properties, byte[] body) {
        this.consumer = consumer;
        this.broker = broker;
        this.link = link;
        this.outer = outer;
        this.properties = properties;
        this.body = body;
        headers = properties.getHeaders() == null ? Map.of() : properties.getHeaders();
        attempt = headers.get("mb-attempt") instanceof Number n && n.longValue() > 0 ? n.longValue() : 1;
    }

    /** False: its link has ended, the message comes again. */
    boolean ack() {
        return answer(true);
    }

    private boolean answer(boolean isDone) {
        synchronized (link) {
            if (answered || !link.live || outer.left <= 0) {
                return false;
            }
            answered = true;
            outer.left = isDone ? outer.left - 1 : 0;
            if (outer.left > 0) {
                return true;
            }
            try {
                if (isDone) {
                    link.channel.basicAck(outer.tag, false);
                } else {
                    link.channel.basicNack(outer.tag, false, true);
                }
            } catch (Exception ended) {
                return false;
            }
            link.owed--;
            link.notifyAll();
            return true;
        }
    }

    /** Has it come again after a while, to this subscription only. */
    boolean retry(long delayMs, String reason) {
        Map<String, Object> more = Map.of("mb-attempt", attempt + 1, "mb-retry-reason", cut(reason), "mb-first-ms", firstMs());
        String exchange = "";
        for (int at = STEPS_MS.length - 1; at >= 0 && delayMs > 0; at--) {
            exchange = STEPS_MS[at] >= delayMs ? "mb.delay/" + STEPS_MS[at] : exchange;
        }
        return copy(exchange, consumer.queue, more);
    }

    boolean park(String reason) {
        return copy("", consumer.park, Map.of("mb-park-reason", cut(reason), "mb-park-attempts", attempt,
                "mb-park-first-ms", firstMs(), "mb-park-ms", System.currentTimeMillis(), "mb-park-broker", broker));
    }

    private boolean copy(String exchange, String key, Map<String, Object> more) {
        var all = new HashMap<>(headers);
        all.keySet().removeIf(name -> BROKERS_OWN.matcher(name).matches());
        all.putAll(more);
        var copied = properties.builder().headers(all).expiration(null).userId(null).clusterId(null).build();
        boolean stored = consumer.copies.send(exchange, key, body, copied).join().equals("confirmed");
        return answer(stored) && stored;
    }

    private long firstMs() {
        if (headers.get("mb-first-ms") instanceof Number n) {
            return n.longValue();
        }
        return properties.getTimestamp() == null ? System.currentTimeMillis() : properties.getTimestamp().getTime();
    }

    private static String cut(String reason) {
        return reason.substring(0, Math.min(reason.length(), REASON_MAX / 4));
    }
}
