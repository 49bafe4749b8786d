# frozen_string_literal: true

require_relative "settings"

# List: waiting fetch, parse, keep the last good one, tell what was applied.
class List
  WAIT_S = 30
  ASK_EVERY_S = 1
  HOST = /\A(?!.*\.\.|.*[^.]{64})(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])\z/
  HEADERS = { "cluster" => /\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z/, "generation" => /\A[0-9]{1,18}\z/ }.freeze
  Known = Struct.new(:cluster, :generation, :brokers, :draining)

  # Reads a list; one bad line raises.
  def self.parse(raw)
    text = raw.dup.force_encoding(Encoding::UTF_8)
    raise "not UTF-8, or too large" unless text.valid_encoding? && text.bytesize <= Settings::BODY_BYTES_MAX

    said = {}
    brokers = {}
    text.split("\n").map(&:strip).each do |line|
      if (header = line.match(/\A# *(cluster|generation) *: *(.*)\z/))
        raise "bad header" if said[header[1]] || !header[2].match?(HEADERS[header[1]])

        said[header[1]] = header[2]
        next
      end
      words = line.split("#", 2).first.to_s.split
      next if words.empty?

      broker = broker_of(words.shift)
      good = words.all? { |word| word == "draining" || (word.start_with?("agent=") && port?(word[6..])) }
      raise "bad line" if !good || brokers.key?(broker)

      brokers[broker] = words.include?("draining")
    end
    raise "no broker in it" if brokers.empty?

    Known.new(said.fetch("cluster", ""), said.fetch("generation", "0").to_i, brokers.keys, brokers.select { |_, is| is }.keys)
  end

  def self.broker_of(word)
    word += ":5672" if !word.include?(":") || word.end_with?("]")
    host, _, port = word.rpartition(":")
    raise "bad broker" unless host.match?(HOST) && port?(port)

    "#{host}:#{port.to_i}"
  end

  def self.port?(text) = text.match?(/\A[0-9]{1,5}\z/) && text.to_i.between?(1, 65_535)

  # Follows the list. The block ends when each of its brokers was tried.
  def initialize(settings, subscription = nil, &apply)
    @settings, @subscription, @applied = settings, subscription, 0
    @thread = Thread.new { follow(apply) }
  end

  def stop = @thread.kill

  private

  def follow(apply)
    waits = Backoff.new
    loop do
      began = now
      list = fetch
      if list && !(@known && list.generation == @known.generation && list.generation.positive?)
        @known = list
        apply.call(list)
        @applied = list.generation
      else
        sleep([began + ASK_EVERY_S - now, 0].max)
      end
      waits = Backoff.new
    rescue StandardError => e
      warn "list: #{e.message}"
      sleep waits.after(e)
    end
  end

  def fetch
    query = {}
    query.update(client: @settings.client_id, subscription: @subscription, applied: @applied) if @subscription
    query.update(generation: @known.generation, wait_s: WAIT_S) if @known
    path = "#{URI(@settings.list_url).path}?#{URI.encode_www_form(query)}"
    status, body = @settings.ask(path, within_s: WAIT_S + Settings::DIAL_S)
    return if status == 304
    raise "HTTP #{status}" if status != 200

    list = List.parse(body)
    raise "older" if @known && list.generation < @known.generation
    raise "of another cluster" if !@settings.cluster.empty? && list.cluster != @settings.cluster

    list
  end
end
