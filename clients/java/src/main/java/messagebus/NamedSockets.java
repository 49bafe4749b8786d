package messagebus;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketAddress;
import javax.net.SocketFactory;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.SSLSocketFactory;

/** Sockets that check the server's certificate for a given name, whatever address they dial. */
final class NamedSockets extends SocketFactory {
    private final SSLSocketFactory tls;
    private final String name;

    NamedSockets(SSLSocketFactory tls, String name) {
        this.tls = tls;
        this.name = name;
    }

    /** Connects in the clear, then speaks TLS over it under the name. */
    @Override
    public Socket createSocket() throws IOException {
        return new Late(tls, name);
    }

    @Override
    public Socket createSocket(String host, int port) throws IOException {
        var plain = new Socket(host, port);
        return Late.secure(tls, plain, name);
    }

    @Override
    public Socket createSocket(InetAddress host, int port) throws IOException {
        return createSocket(host.getHostAddress(), port);
    }

    @Override
    public Socket createSocket(String host, int port, InetAddress own, int ownPort) throws IOException {
        return createSocket(host, port);
    }

    @Override
    public Socket createSocket(InetAddress host, int port, InetAddress own, int ownPort) throws IOException {
        return createSocket(host, port);
    }

    private static final class Late extends Socket {
        private final SSLSocketFactory tls;
        private final String name;
        private SSLSocket secure;

        Late(SSLSocketFactory tls, String name) {
            this.tls = tls;
            this.name = name;
        }

        static SSLSocket secure(SSLSocketFactory tls, Socket plain, String name) throws IOException {
            var secure = (SSLSocket) tls.createSocket(plain, name, plain.getPort(), true);
            var parameters = secure.getSSLParameters();
            parameters.setEndpointIdentificationAlgorithm("HTTPS");
            secure.setSSLParameters(parameters);
            secure.startHandshake();
            return secure;
        }

        @Override
        public void connect(SocketAddress at, int timeoutMs) throws IOException {
            var plain = new Socket();
            plain.connect(at, timeoutMs);
            plain.setSoTimeout(timeoutMs);
            secure = secure(tls, plain, name);
        }

        @Override public java.io.InputStream getInputStream() throws IOException { return secure.getInputStream(); }
        @Override public java.io.OutputStream getOutputStream() throws IOException { return secure.getOutputStream(); }
        @Override public void setSoTimeout(int ms) throws java.net.SocketException { if (secure != null) secure.setSoTimeout(ms); }
        @Override public int getSoTimeout() throws java.net.SocketException { return secure.getSoTimeout(); }
        @Override public void setTcpNoDelay(boolean on) throws java.net.SocketException { if (secure != null) secure.setTcpNoDelay(on); }
        @Override public InetAddress getInetAddress() { return secure.getInetAddress(); }
        @Override public InetAddress getLocalAddress() { return secure.getLocalAddress(); }
        @Override public int getPort() { return secure.getPort(); }
        @Override public int getLocalPort() { return secure.getLocalPort(); }
        @Override public void close() throws IOException { if (secure != null) secure.close(); }
        @Override public InetSocketAddress getRemoteSocketAddress() { return (InetSocketAddress) secure.getRemoteSocketAddress(); }
    }
}
