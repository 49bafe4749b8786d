package messagebus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const registerWithin = 30 * time.Second

// Register has names exist on every broker: "orders", "orders/billing", "queue:jobs", "delay:60000".
// final: asking again does not help.
func (s Settings) Register(wanted []string) (complete, final bool, why string) {
	body, _ := json.Marshal(map[string]any{"wanted": wanted, "alive": true})
	until, waits := time.Now().Add(registerWithin), backoff{}
	at := strings.TrimSuffix(s.ListURL, "/consumer-list") + "/topology"
	for time.Now().Before(until) {
		if complete, final, why = s.askTopology(at, body); complete || final {
			return
		}
		time.Sleep(waits.after(nil))
	}
	return
}

func (s Settings) askTopology(at string, body []byte) (complete, final bool, why string) {
	client, err := s.httpClient()
	if err != nil {
		return false, true, err.Error()
	}
	client.Timeout = 2 * dialTimeout
	request, err := http.NewRequest("POST", at, bytes.NewReader(body))
	if err != nil {
		return false, true, err.Error()
	}
	request.SetBasicAuth(s.User, s.password())
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return false, false, err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, listBytesMax))
	var told struct {
		Complete, Mismatch, Forbidden bool
		Missing                       map[string]string
	}
	err = json.Unmarshal(text, &told)
	switch answer.StatusCode {
	case 200:
		return told.Complete && err == nil, false, fmt.Sprint(told.Missing)
	case 400, 401, 403, 429:
		return false, true, string(text)
	}
	return false, told.Mismatch, answer.Status + " " + string(text)
}
