package messagebus;

import java.net.URI;
import java.net.URLEncoder;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashSet;
import java.util.Set;
import java.util.function.Consumer;
import java.util.regex.Pattern;

/** A consumer list, and its follower: waiting fetch, the last good one kept, what was applied told. */
record List(String cluster, long generation, Set<String> brokers) {
    static final int BYTES_MAX = 1 << 20;
    private static final int WAIT_S = 30, ASK_EVERY_MS = 1_000;
    private static final Pattern HEADER = Pattern.compile("#\\s*(cluster|generation)\\s*:\\s*(.*)");
    private static final Pattern CLUSTER = Pattern.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}");
    private static final Pattern HOST =
            Pattern.compile("(?!.*\\.\\.|.*[^.]{64})[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\\[[0-9A-Fa-f:.]{2,45}\\]");

    /** Reads a list; one bad line throws. */
    static List parse(byte[] raw) throws Exception {
        check(raw.length <= BYTES_MAX, "too large");
        String cluster = null, generation = null;
        Set<String> brokers = new LinkedHashSet<>();
        String text = StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(raw)).toString();
        for (String whole : text.split("\n")) {
            var header = HEADER.matcher(whole.strip());
            if (header.matches()) {
                String value = header.group(2).strip();
                if (header.group(1).equals("cluster")) {
                    check(cluster == null && CLUSTER.matcher(value).matches(), whole);
                    cluster = value;
                } else {
                    check(generation == null && value.matches("[0-9]{1,18}"), whole);
                    generation = value;
                }
                continue;
            }
            String line = whole.split("#", 2)[0].strip();
            if (line.isEmpty()) {
                continue;
            }
            String[] words = line.split("\\s+");
            for (int at = 1; at < words.length; at++) {
                check(words[at].equals("draining") || words[at].startsWith("agent=") && isPort(words[at].substring(6)), whole);
            }
            String broker = words[0].contains(":") && !words[0].endsWith("]") ? words[0] : words[0] + ":5672";
            int colon = broker.lastIndexOf(':');
            check(colon <= 253 && HOST.matcher(broker.substring(0, colon)).matches(), whole);
            check(isPort(broker.substring(colon + 1)) && brokers.add(broker), whole);
        }
        check(!brokers.isEmpty(), "no broker in it");
        return new List(cluster == null ? "" : cluster, generation == null ? 0 : Long.parseLong(generation), brokers);
    }

    private static boolean isPort(String text) {
        return text.matches("[0-9]{1,5}") && Integer.parseInt(text) >= 1 && Integer.parseInt(text) <= 65_535;
    }

    private static void check(boolean good, String told) throws Exception {
        if (!good) {
            throw new Exception("not a list: " + told);
        }
    }

    /** Follows the list on a thread of its own. apply returns when each of its brokers was tried. */
    static Thread follow(Settings settings, String subscription, Consumer<List> apply) {
        var thread = new Thread(() -> {
            List known = null;
            long applied = 0;
            var failures = new Settings.Backoff();
            while (!Thread.currentThread().isInterrupted()) {
                long asked = System.currentTimeMillis();
                try {
                    List list = fetch(settings, subscription, known, applied);
                    if (list != null && (known == null || list.generation != known.generation || list.generation == 0)) {
                        known = list;
                        apply.accept(list);
                        applied = list.generation;
                    } else {
                        Settings.sleep(asked + ASK_EVERY_MS - System.currentTimeMillis());
                    }
                    failures = new Settings.Backoff();
                } catch (Exception fault) {
                    Settings.sleep(failures.after(null));
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static List fetch(Settings s, String subscription, List known, long applied) throws Exception {
        String query = "?client=" + encode(s.clientId) + "&subscription=" + encode(subscription) + "&applied=" + applied;
        if (known != null) {
            query += "&generation=" + known.generation + "&wait_s=" + WAIT_S;
        }
        var answer = Http.ask(s, URI.create(s.listUrl).getPath() + query, null, WAIT_S * 1_000 + Settings.DIAL_TIMEOUT_MS);
        if (answer.status() == 304) {
            return null;
        }
        check(answer.status() == 200, "HTTP " + answer.status());
        List list = parse(answer.body());
        check(known == null || list.generation >= known.generation, "older");
        check(s.cluster.isEmpty() || list.cluster.equals(s.cluster), "of another cluster");
        return list;
    }

    private static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8);
    }
}
