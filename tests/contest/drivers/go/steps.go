// Steps of `lockbench audit`, as bench/experiments/judge/clients/steps.py says them: a JSON step after the other on stdin, a JSON answer per line on
// stdout. SIGINT cancels the context of the step under way.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"time"
)

type words struct {
	Do       string `json:"do"`
	Resource string `json:"resource"`
	TTLMs    int    `json:"ttl_ms"`
	WaitMs   int    `json:"wait_ms"`
}

type answer struct {
	OK      bool     `json:"ok"`
	Absent  bool     `json:"absent,omitempty"`
	Error   string   `json:"error,omitempty"`
	ValidMs *float64 `json:"valid_ms,omitempty"`
}

func step(lock lock, input *json.Decoder) {
	output := json.NewEncoder(os.Stdout)
	output.Encode(answer{OK: true})
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	var held any
	for {
		var w words
		if input.Decode(&w) != nil {
			return
		}
		ctx, stop := context.WithCancel(context.Background())
		go func() {
			select {
			case <-interrupts:
				stop()
			case <-ctx.Done():
			}
		}()
		output.Encode(do(ctx, lock, w, &held))
		stop()
	}
}

func do(ctx context.Context, lock lock, w words, held *any) answer {
	ttl := time.Duration(w.TTLMs) * time.Millisecond
	switch w.Do {
	case "acquire":
		got, err := lock.acquire(ctx, w.Resource, ttl, time.Duration(w.WaitMs)*time.Millisecond)
		if err != nil {
			return told(false, err)
		}
		*held = got
		if lock.valid == nil {
			return answer{OK: true}
		}
		ms := float64(lock.valid(got).Microseconds()) / 1e3
		return answer{OK: true, ValidMs: &ms}
	case "release":
		return told(lock.release(ctx, *held))
	case "extend":
		if lock.extend == nil {
			return answer{Absent: true}
		}
		return told(lock.extend(ctx, *held, ttl))
	case "held":
		return answer{OK: lock.held(ctx, *held)}
	}
	return answer{Absent: true}
}

func told(ok bool, err error) answer {
	if err != nil {
		return answer{Error: fmt.Sprintf("%T: %v", err, err)}
	}
	return answer{OK: ok}
}
