package messagebus;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.ToNumberPolicy;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.LongString;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** The client under test of `python -m clients.conform`: reads orders, tells events, one JSON object a line. */
public final class Conform {
    private static final Gson JSON = new GsonBuilder().serializeNulls().setObjectToNumberStrategy(ToNumberPolicy.LONG_OR_DOUBLE).create();
    private static final PrintStream OUT = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), true, StandardCharsets.UTF_8);
    private static final Settings SETTINGS = new Settings();
    private static final Publisher PUBLISHER = new Publisher(SETTINGS);
    private static final Map<String, Delivery> OPEN = new ConcurrentHashMap<>();
    private static final AtomicLong NUMBER = new AtomicLong();
    private static final ExecutorService POOL = Executors.newCachedThreadPool();
    
    private static Consumer consumer;

    private static final class Order {
        String to, from, key, tag, reason;
        java.util.List<String> ids, wanted;
        int bytes, prefetch;
        long delay_ms;
        Map<String, Object> headers;
        @com.google.gson.annotations.SerializedName("do") String what;
    }

    public static void main(String[] args) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                finish();
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(0); // the JVM's own code for SIGTERM would be 143
        }));
        tell(Map.of("ready", true, "client", "java"));
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            Order order = JSON.fromJson(line, Order.class);
            switch (order.what) {
                case "register" -> POOL.submit(() -> {
                    var told = Register.ask(SETTINGS, order.wanted);
                    tell(Map.of("registered", told.complete(), "final", told.last(), "why", told.why()));
                });
                case "publish" -> publish(order);
                case "consume" -> consumer = new Consumer(SETTINGS, order.from, order.prefetch, PUBLISHER, Conform::deliver);
                case "stop" -> POOL.submit(() -> System.exit(0));
                default -> POOL.submit(() -> answer(order));
            }
        }
        System.exit(0);
    }

    private static void finish() throws InterruptedException {
        if (consumer != null) {
            consumer.stop(10_000);
        }
        PUBLISHER.stop();
    }

    private static void tell(Map<String, ?> event) {
        String line = JSON.toJson(event);
        synchronized (OUT) {
            OUT.println(line);
        }
    }

    private static void publish(Order order) {
        for (String id : order.ids) {
            byte[] raw = id.getBytes(StandardCharsets.UTF_8);
            byte[] body = order.bytes == 0 ? raw : new byte[order.bytes];
            for (int at = 0; at < body.length; at++) {
                body[at] = raw[at % raw.length];
            }
            var headers = new HashMap<>(order.headers);
            if (!order.key.isEmpty()) {
                headers.put("mb-key", order.key);
            }
            var properties = new BasicProperties.Builder().messageId(id).contentType("application/octet-stream").headers(headers).build();
            PUBLISHER.publish(order.to, body, properties).thenAccept(outcome -> tell(Map.of("id", id, "outcome", outcome)));
        }
    }

    private static void deliver(Delivery d) {
        String tag = String.valueOf(NUMBER.incrementAndGet());
        OPEN.put(tag, d);
        var event = new HashMap<String, Object>(Map.of("delivered", String.valueOf(d.properties.getMessageId()), "tag", tag, "broker", d.broker));
        event.put("key", d.headers.containsKey("mb-key") ? d.headers.get("mb-key").toString() : "");
        event.put("headers", plain(d.headers));
        event.put("content_type", d.properties.getContentType());
        event.put("attempt", d.attempt);
        try {
            event.put("sha256", HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(d.body)));
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
        tell(event);
    }

    private static void answer(Order order) {
        Delivery d = OPEN.remove(order.tag);
        boolean ok = d != null && switch (order.what) {
            case "ack" -> d.ack();
            case "retry" -> d.retry(order.delay_ms, order.reason);
            case "park" -> d.park(order.reason);
            default -> false;
        };
        tell(Map.of("answered", order.tag, "ok", ok));
    }

    /** Header values as JSON has them: amqp-client reads text as LongString. */
    private static Object plain(Object value) {
        if (value instanceof LongString text) {
            return text.toString();
        } else if (value instanceof Map<?, ?> table) {
            var found = new HashMap<String, Object>();
            table.forEach((name, each) -> found.put(String.valueOf(name), plain(each)));
            return found;
        } else if (value instanceof java.util.List<?> array) {
            return array.stream().map(Conform::plain).toList();
        }
        return value instanceof Number || value instanceof Boolean || value == null ? value : value.toString();
    }
}
