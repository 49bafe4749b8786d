package messagebus;

import java.io.IOException;
import java.net.HttpURLConnection;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import javax.net.ssl.HttpsURLConnection;

/** Requests to an agent. */
final class Http {
    record Answer(int status, byte[] body) {}

    /** Asks; throws for anything but a whole answer. body: null for GET. */
    static Answer ask(Settings s, String path, String body, int timeoutMs) throws Exception {
        var base = URI.create(s.listUrl);
        var connection = (HttpURLConnection) URI.create(base.getScheme() + "://" + base.getAuthority() + path).toURL().openConnection();
        connection.setConnectTimeout(Settings.DIAL_TIMEOUT_MS);
        connection.setReadTimeout(timeoutMs);
        connection.setInstanceFollowRedirects(false);
        if (connection instanceof HttpsURLConnection secure) {
            var sockets = s.tlsContext().getSocketFactory();
            secure.setSSLSocketFactory(sockets);
            if (!s.serverName.isEmpty()) {
                // Called when the address is not in the certificate: then the name that we were told has to be.
                secure.setHostnameVerifier((host, session) -> names(session).contains(s.serverName));
            }
        }
        String login = Base64.getEncoder().encodeToString((s.user + ":" + s.password()).getBytes(StandardCharsets.UTF_8));
        connection.setRequestProperty("Authorization", "Basic " + login);
        if (body != null) {
            connection.setRequestMethod("POST");
            connection.setDoOutput(true);
            connection.setRequestProperty("Content-Type", "application/json");
            connection.getOutputStream().write(body.getBytes(StandardCharsets.UTF_8));
        }
        try {
            int status = connection.getResponseCode();
            var stream = status < 400 ? connection.getInputStream() : connection.getErrorStream();
            byte[] read = stream == null ? new byte[0] : stream.readNBytes(List.BYTES_MAX + 1);
            long said = connection.getContentLengthLong();
            if (status == 200 && said >= 0 && read.length < Math.min(said, List.BYTES_MAX + 1)) {
                throw new IOException("cut");
            }
            return new Answer(status, read);
        } finally {
            connection.disconnect();
        }
    }

    private static java.util.Set<String> names(javax.net.ssl.SSLSession session) {
        var found = new java.util.HashSet<String>();
        try {
            var own = (java.security.cert.X509Certificate) session.getPeerCertificates()[0];
            for (var each : own.getSubjectAlternativeNames()) {
                found.add(String.valueOf(each.get(1)));
            }
        } catch (Exception unknown) {
            return found;
        }
        return found;
    }
}
