package messagebus;

import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Settings, dialling, back-off and names: what the other parts share. */
final class Settings {
    static final int DIAL_TIMEOUT_MS = 5_000;
    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}");
    final String broker = env("BROKER"), listUrl = env("LIST_URL"), user = env("USER"), cluster = env("CLUSTER");
    final String clientId = env("CLIENT_ID"), serverName = env("TLS_SERVER_NAME");
    final boolean tls = env("TLS").equals("true");

    private static String env(String name) {
        return System.getenv().getOrDefault("MESSAGEBUS_" + name, "");
    }

    /** Reads the password: at every dial, it may have changed. */
    String password() throws Exception {
        return Files.readString(Path.of(env("PASSWORD_FILE"))).strip();
    }

    SSLContext tlsContext() throws Exception {
        var factory = CertificateFactory.getInstance("X.509");
        var trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null);
        int number = 0;
        for (Certificate each : factory.generateCertificates(Files.newInputStream(Path.of(env("TLS_CA_FILE"))))) {
            trusted.setCertificateEntry("ca" + number++, each);
        }
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        var own = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        var keys = KeyStore.getInstance(KeyStore.getDefaultType());
        keys.load(null);
        if (!env("TLS_CERT_FILE").isEmpty()) {
            var chain = factory.generateCertificates(Files.newInputStream(Path.of(env("TLS_CERT_FILE"))));
            String pem = Files.readString(Path.of(env("TLS_KEY_FILE"))).replaceAll("-----[A-Z ]+-----|\\s", "");
            var spec = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem));
            var key = KeyFactory.getInstance("EC").generatePrivate(spec);
            keys.setKeyEntry("own", key, new char[0], chain.toArray(new Certificate[0]));
        }
        own.init(keys, new char[0]);
        var context = SSLContext.getInstance("TLS");
        context.init(own.getKeyManagers(), trust.getTrustManagers(), null);
        return context;
    }

    Connection dial(String at) throws Exception {
        var factory = new ConnectionFactory();
        int colon = at.lastIndexOf(':');
        factory.setHost(at.substring(0, colon).replaceAll("[\\[\\]]", ""));
        factory.setPort(Integer.parseInt(at.substring(colon + 1)));
        factory.setUsername(user);
        factory.setPassword(password());
        factory.setRequestedHeartbeat(10);
        factory.setConnectionTimeout(DIAL_TIMEOUT_MS);
        factory.setHandshakeTimeout(DIAL_TIMEOUT_MS);
        factory.setChannelRpcTimeout(DIAL_TIMEOUT_MS);
        factory.setShutdownTimeout(1_000);
        // It would go back to the same broker, with old tags.
        factory.setAutomaticRecoveryEnabled(false);
        factory.setTopologyRecoveryEnabled(false);
        if (tls) {
            boolean named = at.equals(broker) && !serverName.isEmpty();
            factory.useSslProtocol(tlsContext());
            if (named) {
                // amqp-client checks the host that it dials; the balancer's name may be another one.
                factory.setSocketFactory(new NamedSockets(tlsContext().getSocketFactory(), serverName));
            } else {
                factory.enableHostnameVerification();
            }
        }
        return factory.newConnection(clientId);
    }

    /** Ends a connection; its channels first, or the last acks may be lost. Does not wait for a broker that is gone. */
    static void hangUp(Connection connection, com.rabbitmq.client.Channel channel) {
        var ending = new Thread(() -> {
            try {
                channel.close();
            } catch (Exception ended) {
                // it has
            }
        });
        ending.setDaemon(true);
        if (channel != null) {
            ending.start();
            try {
                ending.join(1_000);
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
        }
        connection.abort(1_000);
    }

    static boolean isName(String name) {
        return NAME.matcher(name).matches() && !name.startsWith("amq.") && !name.startsWith("mb.");
    }

    /** What a destination is published to; null for a bad name. */
    static String exchangeOf(String to) {
        boolean isQueue = to.startsWith("queue:");
        String name = isQueue ? to.substring(6) : to;
        return isName(name) ? (isQueue ? "mb.to/" : "mb.topic/") + name : null;
    }

    static void sleep(long ms) {
        try {
            Thread.sleep(Math.max(0, ms));
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
    }

    /** Failures in a row, and the wait after each. */
    static final class Backoff {
        private int failures, refusals;

        long after(Exception fault) {
            boolean refused = fault instanceof AuthenticationFailureException;
            if (refused) {
                System.err.println("login refused: " + fault.getMessage());
            }
            int n = refused ? refusals++ : failures++;
            long full = Math.min(refused ? 30_000 : 5_000, (refused ? 1_000L : 100L) << Math.min(n, 10));
            return full / 2 + ThreadLocalRandom.current().nextLong(full / 2 + 1);
        }
    }
}
