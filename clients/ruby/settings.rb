# frozen_string_literal: true

# Settings, dialling, back-off and names: what the other parts share.
require "bunny"
require "logger"
require "net/http"
require "timeout"
require_relative "batch"

# The gem's own reader knows few types, takes int8 and int32 for unsigned, and ends the connection at any other.
AMQ::Protocol::Table.define_singleton_method(:decode) { |data| Batch::Reader.new(data.b).then { |reader| reader.table(reader.long, 0) } }

# Names of certificates that are dialled at another host: bunny checks the name that it dials.
module NamedSockets
  AT = {}
  def open(host, port, options = {}) = super(AT.fetch([host, port], host), port, options)
end
Bunny::SocketImpl.singleton_class.prepend(NamedSockets)

def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

class Settings
  DIAL_S = 5
  BODY_BYTES_MAX = 1 << 20
  SILENT = Logger.new(IO::NULL)
  attr_reader :broker, :list_url, :cluster, :client_id

  def initialize(env = ENV)
    said = ->(name) { env.fetch("MESSAGEBUS_#{name}", "") }
    @broker, @list_url, @user, @password_file = %w[BROKER LIST_URL USER PASSWORD_FILE].map(&said)
    @cluster, @client_id, @server_name = %w[CLUSTER CLIENT_ID TLS_SERVER_NAME].map(&said)
    @ca, @cert, @key = %w[TLS_CA_FILE TLS_CERT_FILE TLS_KEY_FILE].map(&said)
    @tls = said.call("TLS") == "true"
  end

  # Read at every dial: it may have changed.
  def password = File.read(@password_file).strip

  # Opens a connection; when it ends by itself, `gone` is called.
  def dial(broker, &gone)
    host, port = Settings.split(broker)
    if @tls && broker == @broker && !@server_name.empty?
      NamedSockets::AT[[@server_name, port]] = host
      host = @server_name
    end
    # Without a handler bunny raises in the thread that dialled, at any time.
    handler = Object.new.tap { |it| it.define_singleton_method(:raise) { |*_| gone&.call } }
    tls = @tls ? { tls: true, verify_peer: true, tls_ca_certificates: [@ca], tls_cert: @cert, tls_key: @key } : {}
    session = Bunny.new(
      host: host, port: port, user: @user, pass: password, heartbeat: 10, connection_name: @client_id, **tls, logger: SILENT,
      automatically_recover: false, recover_from_connection_close: false, session_error_handler: handler,
      connection_timeout: DIAL_S, read_timeout: DIAL_S, write_timeout: DIAL_S, continuation_timeout: DIAL_S * 1000
    )
    Timeout.timeout(2 * DIAL_S) { session.start }
    session
  rescue StandardError, Timeout::Error
    Settings.hang_up(session)
    raise
  end

  def self.split(broker)
    host, _, port = broker.rpartition(":")
    [host.delete("[]"), Integer(port, 10)]
  end

  # Ends a connection. Its channel first: a connection that is closed at once may take the last acks with it.
  def self.hang_up(session, channel = nil)
    Timeout.timeout(2) do
      channel.close if channel&.open?
      session&.close
    end
  rescue StandardError, Timeout::Error
    begin
      session&.transport&.close
    rescue StandardError
      nil
    end
  end

  # Asks an agent: [status, body]. Raises on anything but a whole answer.
  def ask(path, within_s:, body: nil)
    at = URI.join(@list_url, path)
    named = @tls && !@server_name.empty?
    http = Net::HTTP.new(named ? @server_name : at.hostname, at.port, nil)
    http.ipaddr = IPSocket.getaddress(at.hostname) if named
    http.open_timeout = DIAL_S
    http.read_timeout = within_s
    http.max_retries = 0
    if @tls
      http.use_ssl = true
      http.ca_file = @ca
      http.cert = OpenSSL::X509::Certificate.new(File.read(@cert))
      http.key = OpenSSL::PKey.read(File.read(@key))
    end
    request = (body ? Net::HTTP::Post : Net::HTTP::Get).new(at)
    request.basic_auth(@user, password)
    if body
      request["Content-Type"] = "application/json"
      request.body = body
    end
    told = "".b
    answer = http.request(request) do |reading|
      reading.read_body do |part|
        raise "too large" if (told << part).bytesize > BODY_BYTES_MAX
      end
      # Net::HTTP takes a body that was cut for a whole one.
      raise "cut" if reading.content_length && reading.content_length != told.bytesize
    end
    [answer.code.to_i, told]
  end

  # What a destination is published to; nil for a bad name.
  def self.exchange_of(to)
    name = to.delete_prefix("queue:")
    return unless name.match?(/\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}\z/) && !name.start_with?("amq.", "mb.")

    name == to ? "mb.topic/#{name}" : "mb.to/#{name}"
  end

  # The queue of `TOPIC/SUBSCRIPTION` or `queue:NAME`, and its parking queue.
  def self.queues_of(from)
    name = from.delete_prefix("queue:")
    [name == from ? "mb.sub/#{name}" : "mb.queue/#{name}", "mb.park/#{name}"]
  end
end

class Backoff
  def initialize = (@failures = @refusals = 0)

  def after(fault = nil)
    refused = fault.is_a?(Bunny::PossibleAuthenticationFailureError)
    warn "login refused: #{fault.message}" if refused
    first, most, count = refused ? [1.0, 30.0, @refusals += 1] : [0.1, 5.0, @failures += 1]
    rand(0.5..1.0) * [first * 2**[count - 1, 10].min, most].min
  end
end
