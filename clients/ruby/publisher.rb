# frozen_string_literal: true

require_relative "list"

# Publisher: one link to the broker that the balancer gives; each publish ends in one outcome.
class Publisher
  WINDOW = 256
  DEADLINE_S = 10
  CONFIRM_SLOW_S = 1.5
  LIFETIME_S = 600
  TICK_S = 0.05
  Job = Struct.new(:exchange, :key, :body, :properties, :until_s, :told, :sent_s) do
    def id = properties[:message_id]
  end
  # flying: jobs by delivery tag. returned: ids of returns whose confirm has not come.
  Link = Struct.new(:session, :channel, :flying, :returned, :ends_s)

  def initialize(settings)
    @settings, @news, @waits, @open = settings, Queue.new, Backoff.new, 0
    @waiting, @leaving, @draining = [], [], []
    Thread.new { loop { sleep TICK_S and @news << [:tick] } }
    List.new(settings) { |list| @draining = list.draining }
    Thread.new { run }
  end

  # Calls the block with "confirmed", "refused", "unroutable" or "unknown".
  def publish(exchange, key, body, properties, &told)
    more = { persistent: true, mandatory: true }
    @news << [:job, Job.new(exchange, key, body, properties.merge(more), now + DEADLINE_S, told)]
  end

  def publish_and_wait(*what)
    outcome = Queue.new
    publish(*what) { |told| outcome << told }
    outcome.pop
  end

  private

  # One thread decides; bunny's tell it what happened, in their order, and are never waited for.
  def run
    loop do
      redial if @link.nil? && now >= @open
      what, link, *more = @news.pop
      case what
      when :job then @waiting << link
      when :returned then link.returned << more[0]
      when :confirmed then confirmed(link, *more)
      when :gone then leave(link)
      when :tick then tick
      end
      pump
    end
  end

  def redial
    gone = nil
    session = @settings.dial(@settings.broker) { @news << [:gone, gone] }
    channel = session.create_channel
    link = gone = Link.new(session, channel, {}, [], now + LIFETIME_S * rand(0.8..1.2))
    session.on_blocked { @news << [:gone, link] }
    # Both are called by bunny's one reader, in the broker's order. It drops returns of exchanges that it did not declare.
    news = @news
    channel.define_singleton_method(:handle_basic_return) { |_, properties, _| news << [:returned, link, properties[:message_id]] }
    channel.confirm_select(->(tag, _, nack) { news << [:confirmed, link, tag, nack] })
    @link = link
    @waits = Backoff.new
  rescue StandardError, Timeout::Error => e
    warn "publisher: #{e.class} #{e.message}"
    Settings.hang_up(session)
    @open = now + @waits.after(e)
  end

  def confirmed(link, tag, nack)
    job = link.flying.delete(tag) or return
    returned = link.returned.delete(job.id)
    job.told.call(nack ? "refused" : returned ? "unroutable" : "confirmed")
  end

  def pump
    while @link && @link.flying.size < WINDOW
      # A return names the id only: one of an id at a time.
      busy = [@link, *@leaving].flat_map { |link| link.flying.values.map(&:id) }
      job = @waiting.find { |each| !busy.include?(each.id) } or return
      @waiting.delete_at(@waiting.index { |each| each.equal?(job) })
      job.sent_s = now
      @link.flying[@link.channel.next_publish_seq_no] = job
      begin
        @link.channel.basic_publish(job.body, job.exchange, job.key, job.properties)
      rescue StandardError
        leave(@link)
      end
    end
  end

  # What is not confirmed is unknown.
  def leave(link)
    return if link.nil?

    @leaving.delete(link)
    if @link.equal?(link)
      @link = nil
      @open = now + @waits.after
    end
    link.flying.each_value { |job| job.told.call("unknown") }
    link.flying.clear
    Thread.new { Settings.hang_up(link.session) }
  end

  def tick
    late, @waiting = @waiting.partition { |job| now > job.until_s }
    late.each { |job| job.told.call("unknown") }
    return if @link.nil? && @leaving.empty?

    [@link, *@leaving].compact.each { |link| leave(link) if link.flying.any? { |_, job| now - job.sent_s > CONFIRM_SLOW_S } }
    @leaving.each { |link| leave(link) if link.flying.empty? }
    return if @link.nil? || (now < @link.ends_s && !@draining.include?(@link.session.server_properties["cluster_name"]))

    @leaving << @link
    @link = nil
  end
end
