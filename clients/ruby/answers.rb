# frozen_string_literal: true

require_relative "batch"
require_relative "register"

# Answers: ack on the link that delivered; retry and park by a copy, confirmed before the ack.
class Delivery
  REASON_BYTES_MAX = 1024
  STEPS_MS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400,
              172_800, 345_600, 604_800].map { |step_s| step_s * 1000 }.freeze
  BROKERS_OWN = /\A(x-death|x-(first|last)-death-.*|x-delivery-count|x-acquired-count|CC|BCC|mb-retry-reason)\z/
  COPIED = %i[content_type content_encoding priority correlation_id reply_to message_id timestamp type app_id].freeze
  LOCK = Mutex.new
  STEPS = {}
  attr_reader :broker, :properties, :body, :headers, :attempt

  # outer: shared by the entries of a batch, with `left`.
  def initialize(consumer, broker, link, tag, outer, properties, body)
    @consumer, @broker, @link, @tag, @outer = consumer, broker, link, tag, outer
    @properties, @body = properties, body
    @headers = properties[:headers] || {}
    @attempt = [Integer(@headers["mb-attempt"], exception: false) || 1, 1].max
  end

  # False: its link has ended, the message comes again.
  def ack = answer(true)
  def give_back = answer(false)

  def retry(delay_ms, reason)
    step = STEPS_MS.find { |each| each >= delay_ms } || STEPS_MS.last
    if delay_ms.positive?
      LOCK.synchronize { STEPS[step] ||= Register.call(@consumer.settings, ["delay:#{step}"])[0] }
      return give_back && false unless STEPS[step]
    end
    more = { "mb-attempt" => @attempt + 1, "mb-retry-reason" => cut(reason), "mb-first-ms" => first_ms }
    copy(delay_ms.positive? ? "mb.delay/#{step}" : "", @consumer.queue, more)
  end

  def park(reason)
    copy("", @consumer.park,
         "mb-park-reason" => cut(reason), "mb-park-attempts" => @attempt, "mb-park-first-ms" => first_ms,
         "mb-park-ms" => (Time.now.to_f * 1000).to_i, "mb-park-broker" => @broker)
  end

  private

  def answer(done)
    LOCK.synchronize do
      return false if @answered || !@link.live || !@outer.left.positive?

      @answered = true
      @outer.left = done ? @outer.left - 1 : 0
      return true if @outer.left.positive?

      done ? @link.channel.basic_ack(@tag, false) : @link.channel.basic_nack(@tag, false, true)
      @link.owed -= 1
      true
    end
  rescue StandardError
    false
  end

  def copy(exchange, key, more)
    kept = @headers.reject { |name, _| name.match?(BROKERS_OWN) }.transform_values { |value| writable(value) }
    own = @properties.slice(*COPIED).merge(headers: kept.merge(more))
    own[:timestamp] = own[:timestamp].to_i if own[:timestamp]
    outcome = @consumer.copies.publish_and_wait(exchange, key, @body, own)
    return ack if outcome == "confirmed"

    give_back
    false
  end

  # The gem has no decimals that others could read.
  def writable(value)
    case value
    when Rational then value.to_f
    when Hash then value.transform_values { |each| writable(each) }
    when Array then value.map { |each| writable(each) }
    else value
    end
  end

  def first_ms
    first = @headers["mb-first-ms"]
    first.is_a?(Integer) ? first : (@properties[:timestamp] || Time.now).to_i * 1000
  end

  def cut(reason) = reason.to_s.byteslice(0, REASON_BYTES_MAX).scrub("")
end
