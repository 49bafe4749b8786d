package messagebus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	listBytesMax = 1 << 20
	listWait     = 30 * time.Second
	askEvery     = time.Second
	appliedHold  = time.Second
)

// List is a consumer list: the brokers to consume from, host:port each.
type List struct {
	Cluster    string
	Generation int64
	Brokers    []string
}

var (
	listHeader  = regexp.MustCompile(`^#\s*(cluster|generation)\s*:\s*(.*)$`)
	clusterName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	digits      = regexp.MustCompile(`^[0-9]{1,18}$`)
	hostName    = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\])$`)
	labels      = regexp.MustCompile(`^[^.]{1,63}(\.[^.]{1,63})*$`)
)

// ParseList reads a list; one bad line refuses the whole.
func ParseList(text []byte) (*List, error) {
	if len(text) > listBytesMax || !utf8.Valid(text) {
		return nil, errors.New("too large, or not UTF-8")
	}
	list, said, seen := &List{}, map[string]bool{}, map[string]bool{}
	for _, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if h := listHeader.FindStringSubmatch(line); h != nil {
			value := strings.TrimSpace(h[2])
			if said[h[1]] || (h[1] == "cluster" && !clusterName.MatchString(value)) ||
				(h[1] == "generation" && !digits.MatchString(value)) {
				return nil, fmt.Errorf("bad header %q", line)
			}
			said[h[1]] = true
			if h[1] == "cluster" {
				list.Cluster = value
			} else {
				list.Generation, _ = strconv.ParseInt(value, 10, 64)
			}
			continue
		}
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		for _, word := range words[1:] {
			agent, isAgent := strings.CutPrefix(word, "agent=")
			if word != "draining" && !(isAgent && isPort(agent)) {
				return nil, fmt.Errorf("bad attribute %q", word)
			}
		}
		broker := words[0]
		if at := strings.LastIndex(broker, ":"); at < 0 || strings.HasSuffix(broker, "]") {
			broker += ":5672"
		}
		at := strings.LastIndex(broker, ":")
		if len(broker[:at]) > 253 || !hostName.MatchString(broker[:at]) || !labels.MatchString(broker[:at]) || !isPort(broker[at+1:]) || seen[broker] {
			return nil, fmt.Errorf("bad broker %q", broker)
		}
		seen[broker] = true
		list.Brokers = append(list.Brokers, broker)
	}
	if len(list.Brokers) == 0 {
		return nil, errors.New("no broker in it")
	}
	return list, nil
}

func isPort(text string) bool {
	port, err := strconv.Atoi(text)
	return err == nil && digits.MatchString(text) && len(text) <= 5 && port >= 1 && port <= 65535
}

// follow fetches the list until ctx ends, and calls apply with each newer one. attached returns when every
// broker of it is consumed from, or was dialled in vain.
func (s Settings) follow(ctx context.Context, subscription string, apply func(*List), attached func(time.Duration)) {
	var known *List
	var failures backoff
	var applied int64
	for ctx.Err() == nil {
		asked := time.Now()
		list, err := s.fetch(ctx, subscription, known, applied)
		if err == nil && list != nil && known != nil && list.Generation < known.Generation {
			err = errors.New("older")
		}
		if err == nil && list != nil && s.Cluster != "" && list.Cluster != s.Cluster {
			err = errors.New("of another cluster")
		}
		switch {
		case err != nil:
			sleep(ctx, failures.after(err))
			continue
		case list == nil || (known != nil && list.Generation == known.Generation && list.Generation > 0):
			sleep(ctx, askEvery-time.Since(asked))
		default:
			known = list
			apply(list)
			attached(appliedHold)
			applied = list.Generation
		}
		failures = backoff{}
	}
}

func (s Settings) fetch(ctx context.Context, subscription string, known *List, applied int64) (*List, error) {
	query := url.Values{"client": {s.ClientID}, "subscription": {subscription}, "applied": {fmt.Sprint(applied)}}
	if known != nil {
		query.Set("generation", fmt.Sprint(known.Generation))
		query.Set("wait_s", fmt.Sprint(int(listWait.Seconds())))
	}
	ctx, cancel := context.WithTimeout(ctx, listWait+dialTimeout)
	defer cancel()
	client, err := s.httpClient()
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, "GET", s.ListURL+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth(s.User, s.password()) // without a login nobody is counted
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusNotModified {
		return nil, nil
	}
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	// A body that is shorter than its Content-Length is an error of ReadAll.
	text, err := io.ReadAll(io.LimitReader(answer.Body, listBytesMax+1))
	if err != nil {
		return nil, err
	}
	return ParseList(text)
}

func (s Settings) httpClient() (*http.Client, error) {
	at, err := url.Parse(s.ListURL)
	if err != nil {
		return nil, err
	}
	name := s.ServerName
	if name == "" {
		name = at.Hostname()
	}
	secure, err := s.tlsConfig(name)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}, nil
}

func sleep(ctx context.Context, wait time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}
