# frozen_string_literal: true

require "json"
require_relative "settings"

# register: has names exist on every broker. Returns [complete, final, why]; final: asking again does not help.
module Register
  WITHIN_S = 30
  FINAL = [400, 401, 403, 429].freeze

  def self.call(settings, wanted)
    until_s, wait_s = now + WITHIN_S, 0.05
    loop do
      told = once(settings, wanted)
      return told if told[0] || told[1] || now > until_s

      sleep wait_s
      wait_s = [2 * wait_s, 1].min
    end
  end

  def self.once(settings, wanted)
    status, text = settings.ask("/topology", body: JSON.generate(wanted: wanted, alive: true), within_s: 10)
    return [false, true, text] if FINAL.include?(status)

    told = JSON.parse(text)
    [status == 200 && told["complete"] == true, told["mismatch"] == true, text]
  rescue StandardError => e
    [false, false, e.message]
  end
end
