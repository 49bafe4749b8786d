package messagebus;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** register: has names exist on every broker. */
final class Register {
    private static final int WITHIN_MS = 30_000;

    /** Its end. last: asking again does not help. */
    record Answer(boolean complete, boolean last, String why) {}

    static Answer ask(Settings s, java.util.List<String> wanted) {
        long until = System.currentTimeMillis() + WITHIN_MS;
        var waits = new Settings.Backoff();
        while (true) {
            Answer told = once(s, wanted);
            if (told.complete || told.last || System.currentTimeMillis() > until) {
                return told;
            }
            Settings.sleep(waits.after(null));
        }
    }

    private static Answer once(Settings s, java.util.List<String> wanted) {
        try {
            String body = new Gson().toJson(Map.of("wanted", wanted, "alive", true));
            var answer = Http.ask(s, "/topology", body, 2 * Settings.DIAL_TIMEOUT_MS);
            String text = new String(answer.body(), StandardCharsets.UTF_8);
            if (java.util.List.of(400, 401, 403, 429).contains(answer.status())) {
                return new Answer(false, true, text);
            }
            var told = new Gson().fromJson(text, JsonObject.class);
            boolean complete = answer.status() == 200 && told.get("complete").getAsBoolean();
            return new Answer(complete, told.has("mismatch") && told.get("mismatch").getAsBoolean(), text);
        } catch (Exception fault) {
            return new Answer(false, false, String.valueOf(fault));
        }
    }
}
