# frozen_string_literal: true

# Batch: several messages in one AMQP message; and tables of headers, which the gem reads wrongly.
module Batch
  TYPE = "application/vnd.messagebus.batch"
  ENTRIES_MAX = 10_000
  DEPTH_MAX = 32
  # From the highest bit down.
  PROPERTIES = %i[content_type content_encoding headers delivery_mode priority correlation_id reply_to
                  expiration message_id timestamp type user_id app_id cluster_id].freeze
  FIXED = { "b" => [1, "c"], "B" => [1, "C"], "s" => [2, "s>"], "U" => [2, "s>"], "u" => [2, "n"], "I" => [4, "l>"],
            "i" => [4, "N"], "l" => [8, "q>"], "L" => [8, "q>"], "f" => [4, "g"], "d" => [8, "G"] }.freeze

  class Reader
    def initialize(raw)
      @raw = raw
      @at = 0
    end

    def more? = @at < @raw.bytesize

    def take(size)
      raise ArgumentError, "cut" if @at + size > @raw.bytesize

      @at += size
      @raw.byteslice(@at - size, size)
    end

    def number(size, how) = take(size).unpack1(how)
    def long = take(number(4, "N"))
    def short = take(number(1, "C")).force_encoding(Encoding::UTF_8)

    # A table up to the first value of an unknown type: behind it nothing can be read.
    def table(raw, depth)
      inner = Reader.new(raw)
      found = {}
      found[inner.short] = inner.value(depth) while inner.more?
      found
    rescue TypeError
      found
    end

    def value(depth)
      raise ArgumentError, "too deep" if depth > DEPTH_MAX

      kind = take(1)
      return number(*FIXED[kind]) if FIXED.key?(kind)

      case kind
      when "t" then number(1, "C") != 0
      when "D" then number(1, "C").then { |places| Rational(number(4, "l>"), 10**places) }
      when "T" then Time.at(number(8, "Q>"))
      when "S" then long.force_encoding(Encoding::UTF_8)
      when "x" then long
      when "F" then table(long, depth + 1)
      when "A"
        inner = Reader.new(long)
        found = []
        found << inner.value(depth + 1) while inner.more?
        found
      when "V" then nil
      else raise TypeError, "unknown type"
      end
    end

    def properties
      flags = number(2, "n")
      raise ArgumentError, "more flags" if flags.odd?

      set = PROPERTIES.each_index.select { |index| flags[15 - index] == 1 }
      set.to_h { |index| [PROPERTIES[index], property(PROPERTIES[index])] }
    end

    def property(name)
      case name
      when :headers then table(long, 0)
      when :delivery_mode, :priority then number(1, "C")
      when :timestamp then Time.at(number(8, "Q>"))
      else short
      end
    end
  end

  # The entries as [properties, body]; raises ArgumentError when the body is no batch.
  def self.split(body)
    reader = Reader.new(body.b)
    entries = []
    while reader.more? && entries.size < ENTRIES_MAX
      entries << [{ content_type: "application/octet-stream" }.merge(Reader.new(reader.long).properties), reader.long]
    end
    raise ArgumentError, "not a batch" if entries.empty? || reader.more?

    entries
  end
end
