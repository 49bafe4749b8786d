# frozen_string_literal: true

# The client under test of `python -m clients.conform`: reads orders, tells events, one JSON object a line.
require "digest"
require "json"
require_relative "consumer"
require_relative "publisher"
require_relative "register"

FINISH_S = 10
Thread.report_on_exception = true
$stdout.sync = true
SETTINGS = Settings.new
PUBLISHER = Publisher.new(SETTINGS)
OPEN = {}
WAY = Queue.new # an entry for each outcome that is still to be told
TOLD = Mutex.new

def tell(event) = TOLD.synchronize { puts JSON.generate(event) }

def publish(order)
  exchange = Settings.exchange_of(order["to"])
  headers = (order["headers"] || {}).merge(order["key"].to_s.empty? ? {} : { "mb-key" => order["key"] })
  order["ids"].each do |id|
    next tell({ id: id, outcome: "refused" }) if exchange.nil?

    size = order["bytes"].to_i
    body = size.zero? ? id : (id * (size / id.bytesize + 1)).byteslice(0, size)
    own = { message_id: id, content_type: "application/octet-stream", timestamp: Time.now.to_i, headers: headers }
    WAY << id
    PUBLISHER.publish(exchange, "", body, own) do |outcome|
      tell({ id: id, outcome: outcome })
      WAY.pop
    end
  end
end

def json(value)
  case value
  when Hash then value.transform_values { |each| json(each) }
  when Array then value.map { |each| json(each) }
  when Time then value.to_i
  when Rational then value.to_f
  when String then value.encoding == Encoding::BINARY ? value.unpack1("H*") : value.scrub
  else value
  end
end

def deliver(delivery)
  tag = TOLD.synchronize { (@number = @number.to_i + 1).to_s.tap { |it| OPEN[it] = delivery } }
  tell({ delivered: delivery.properties[:message_id], tag: tag, broker: delivery.broker, key: delivery.headers["mb-key"] || "",
         headers: json(delivery.headers), content_type: delivery.properties[:content_type], attempt: delivery.attempt,
         sha256: Digest::SHA256.hexdigest(delivery.body) })
end

def answer(order)
  delivery = OPEN.delete(order["tag"])
  ok = case delivery && order["do"]
       when "ack" then delivery.ack
       when "retry" then delivery.retry(order["delay_ms"].to_i, order["reason"])
       when "park" then delivery.park(order["reason"])
       else false
       end
  tell({ answered: order["tag"], ok: ok })
end

def register(order)
  complete, is_final, why = Register.call(SETTINGS, order["wanted"])
  tell({ registered: complete, final: is_final, why: why })
end

# Anything of it: a line, nil at the end of input or at SIGTERM.
ORDERS = Queue.new
trap("TERM") { Thread.new { ORDERS << nil } }
Thread.new do
  $stdin.each_line { |line| ORDERS << line }
  ORDERS << nil
end
tell({ ready: true, client: "ruby" })
consumers = []
# Answers come while it ends.
finish = lambda do
  ends = now + FINISH_S
  consumers.map { |each| Thread.new { each.stop(FINISH_S) } }.each(&:join)
  sleep 0.02 until WAY.empty? || now > ends
  exit!(0)
end
loop do
  line = ORDERS.pop
  order = line ? JSON.parse(line) : { "do" => "stop" }
  case order["do"]
  when "register" then Thread.new(order) { |own| register(own) }
  when "publish" then publish(order)
  when "consume" then consumers << Consumer.new(SETTINGS, order["from"], order["prefetch"], PUBLISHER) { |each| deliver(each) }
  when "stop" then Thread.new(&finish)
  when "ack" then answer(order)
  else Thread.new(order) { |own| answer(own) }
  end
end
