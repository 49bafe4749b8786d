package messagebus;

import java.net.URI;
import java.net.http.*;
import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import org.springframework.amqp.core.MessageListener;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.listener.DirectMessageListenerContainer;
import org.springframework.context.SmartLifecycle;

/** One container a broker of the consumer list, kept as the list says. */
class BusListeners implements SmartLifecycle {
    private final HttpClient http = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(3)).build();
    private final Map<String, DirectMessageListenerContainer> containers = new HashMap<>();
    private final String listUrl, queue, user, password;
    private final MessageListener listener;
    private volatile Thread follower;

    BusListeners(String listUrl, String subscription, String user, String password, MessageListener listener) {
        this.listUrl = listUrl;
        this.queue = "mb.sub/" + subscription; // mb.sub/orders/billing
        this.user = user;
        this.password = password;
        this.listener = listener;
    }

    @Override
    public void start() {
        follower = new Thread(this::follow, "messagebus-list");
        follower.start();
    }

    private void follow() {
        for (String generation = ""; follower == Thread.currentThread(); ) {
            try {
                var wait = generation.isEmpty() ? "" : "?generation=" + generation + "&wait_s=30";
                var request = HttpRequest.newBuilder(URI.create(listUrl + wait)).timeout(Duration.ofSeconds(40)).build();
                var answer = http.send(request, HttpResponse.BodyHandlers.ofString());
                var brokers = answer.body().lines().map(line -> line.split("#")[0].trim().split(" ")[0])
                        .filter(each -> !each.isEmpty()).collect(Collectors.toSet());
                // The whole grammar, and what to refuse, is in WIRE.md; clients/java/.../List.java reads it.
                if (answer.statusCode() == 200 && !brokers.isEmpty()) {
                    apply(brokers);
                    generation = answer.headers().firstValue("MB-Generation").orElse("");
                }
                Thread.sleep(1000);
            } catch (InterruptedException stop) {
                return;
            } catch (Exception away) { // the last list stays
                try {
                    Thread.sleep(1000 + (long) (Math.random() * 4000));
                } catch (InterruptedException stop) {
                    return;
                }
            }
        }
    }

    private synchronized void apply(Set<String> brokers) {
        for (var gone : Set.copyOf(containers.keySet())) {
            if (!brokers.contains(gone)) {
                var container = containers.remove(gone);
                container.stop(); // cancels, and waits for its handlers
                ((CachingConnectionFactory) container.getConnectionFactory()).destroy();
            }
        }
        for (var broker : brokers) {
            containers.computeIfAbsent(broker, this::open).start();
        }
    }

    private DirectMessageListenerContainer open(String broker) {
        var rabbit = new com.rabbitmq.client.ConnectionFactory();
        rabbit.setAutomaticRecoveryEnabled(false); // the container dials anew by itself
        rabbit.setTopologyRecoveryEnabled(false);
        var at = broker.lastIndexOf(':');
        var factory = new CachingConnectionFactory(rabbit);
        factory.setHost(broker.substring(0, at));
        factory.setPort(Integer.parseInt(broker.substring(at + 1)));
        factory.setUsername(user);
        factory.setPassword(password);
        factory.setRequestedHeartBeat(10);
        var container = new DirectMessageListenerContainer(factory);
        container.setQueueNames(queue);
        container.setAutoDeclare(false);       // agents own the topology
        container.setMissingQueuesFatal(false); // a new broker gets its queues within seconds
        container.setPrefetchCount(200);
        container.setRecoveryInterval(1000);
        container.setShutdownTimeout(60_000);
        container.setDefaultRequeueRejected(false); // what fails for good is parked
        container.setMessageListener(listener);
        container.afterPropertiesSet();
        return container;
    }

    @Override
    public synchronized void stop() {
        var thread = follower;
        follower = null;
        thread.interrupt();
        apply(Set.of());
    }

    @Override
    public boolean isRunning() {
        return follower != null;
    }
}
