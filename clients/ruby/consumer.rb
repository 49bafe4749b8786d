# frozen_string_literal: true

require_relative "answers"
require_relative "list"

# Consumer: a link to each broker of the list, each on a thread of its own.
class Consumer
  LASTED_S = 5
  APPLIED_HOLD_S = 1
  LET_GO_S = 60
  Link = Struct.new(:channel, :live, :owed, :news)
  attr_reader :settings, :queue, :park, :prefetch, :copies

  # copies: the publisher of retries and parked messages. The block gets deliveries.
  def initialize(settings, from, prefetch, copies, &handle)
    @settings, @prefetch, @copies, @handle = settings, prefetch, copies, handle
    @queue, @park = Settings.queues_of(from)
    @brokers = {}
    @list = List.new(settings, from) { |list| apply(list) }
  end

  def handle(delivery) = @handle.call(delivery)

  # Takes no more, waits for open answers, hangs up.
  def stop(within_s)
    @list.stop
    @brokers.each_value(&:leave)
    ends = now + within_s
    @brokers.each_value { |broker| broker.thread.join([ends - now, 0].max) }
  end

  private

  def apply(list)
    (@brokers.keys - list.brokers).each { |name| @brokers[name].leave }
    list.brokers.each { |name| @brokers[name] = Listed.new(self, name, @brokers[name]) unless @brokers[name]&.listed? }
    hold = now + APPLIED_HOLD_S
    sleep 0.01 until now > hold || list.brokers.all? { |name| @brokers[name].tried }
  end

  # One broker of the list, until it leaves it. tried: attached, or dialled in vain.
  class Listed
    attr_reader :thread, :tried

    # before: the same broker, which left the list and may still wait for answers.
    def initialize(consumer, name, before)
      @consumer, @name, @listed = consumer, name, true
      @left = Queue.new
      @thread = Thread.new do
        before&.thread&.join
        keep
      end
    end

    def listed? = @listed

    def leave
      @listed = false
      @left << :left
      @news&.push(:left)
    end

    private

    def keep
      waits = Backoff.new
      while @listed
        began = now
        fault = attempt
        @tried = true
        waits = Backoff.new if fault.nil? && now - began >= LASTED_S
        until_s = now + waits.after(fault)
        sleep 0.02 while @listed && now < until_s
      end
    end

    def attempt
      once
      nil
    rescue StandardError, Timeout::Error => e
      warn "#{@name}: #{e.class} #{e.message}"
      e
    end

    # Consumes until the link ends, or the broker left the list and nothing is owed.
    def once
      news = @news = Queue.new
      link = Link.new(nil, true, 0, news)
      gone = lambda do |*_|
        link.live = false
        news << :gone
      end
      session = @consumer.settings.dial(@name, &gone)
      channel = link.channel = session.create_channel
      channel.on_error(&gone)
      channel.prefetch(@consumer.prefetch)
      taker = Bunny::Consumer.new(channel, @consumer.queue, "mb", false)
      taker.on_delivery { |info, properties, body| @listed ? deliver(link, info.delivery_tag, properties, body) : nil }
      taker.on_cancellation(&gone)
      channel.basic_consume_with(taker)
      @tried = true
      news << :left unless @listed
      return if news.pop == :gone

      channel.basic_cancel("mb")
      ends = now + LET_GO_S
      sleep 0.01 while link.live && link.owed.positive? && now < ends
    ensure
      link.live = false
      Settings.hang_up(session, channel)
    end

    def deliver(link, tag, properties, body)
      link.owed += 1
      outer = Struct.new(:left).new(1)
      whole = Delivery.new(@consumer, @name, link, tag, outer, properties.to_hash, body)
      return @consumer.handle(whole) if properties.content_type != Batch::TYPE

      entries = begin
        Batch.split(body)
      rescue ArgumentError => e
        return Thread.new { whole.park("no batch: #{e.message}") }
      end
      outer.left = entries.size
      entries.each do |own, part|
        known = { timestamp: properties.timestamp }.compact.merge(own)
        @consumer.handle(Delivery.new(@consumer, @name, link, tag, outer, known, part))
      end
    end
  end
end
