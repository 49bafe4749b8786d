package messagebus;

import com.rabbitmq.client.AMQP.BasicProperties;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;

/** Several messages in one. amqp-client's own reader of property lists is public, in its package impl. */
final class Batch {
    static final String TYPE = "application/vnd.messagebus.batch";
    private static final int ENTRIES_MAX = 10_000;

    record Entry(BasicProperties properties, byte[] body) {}

    /** Returns the entries; throws when the body is no batch. */
    static java.util.List<Entry> split(byte[] body) throws Exception {
        var found = new ArrayList<Entry>();
        var raw = ByteBuffer.wrap(body);
        while (raw.hasRemaining() && found.size() < ENTRIES_MAX) {
            byte[] list = part(raw);
            found.add(new Entry(properties(list), part(raw)));
        }
        if (found.isEmpty() || raw.hasRemaining()) {
            throw new Exception("not a batch");
        }
        return found;
    }

    private static byte[] part(ByteBuffer raw) throws Exception {
        int size = raw.remaining() < 4 ? -1 : raw.getInt();
        if (size < 0 || size > raw.remaining()) {
            throw new Exception("cut");
        }
        byte[] part = new byte[size];
        raw.get(part);
        return part;
    }

    private static BasicProperties properties(byte[] list) throws Exception {
        // It wants the whole content header: weight and body size first.
        var whole = ByteBuffer.allocate(10 + list.length).position(10).put(list).array();
        var read = new BasicProperties(new DataInputStream(new ByteArrayInputStream(whole)));
        return read.getContentType() != null ? read : read.builder().contentType("application/octet-stream").build();
    }
}
