// Go's locks for `make peers`: an order on stdin, a tally on stdout (the two documents of ../../clients/loops.py); with the word
// `steps` the order is one line, and steps.go answers those that follow.
// Rules: the library's defaults on each driver; a cycle is acquire, hold, release; one goroutine per caller.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	goredisadapter "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redigoadapter "github.com/go-redsync/redsync/v4/redis/redigo"
	rueidisadapter "github.com/go-redsync/redsync/v4/redis/rueidis"
	redigo "github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"
)

type order struct {
	Name    string   `json:"name"`
	Urls    []string `json:"urls"`
	Pids    []int    `json:"pids"`
	Seconds float64  `json:"seconds"`
	WarmupS float64  `json:"warmup_s"`
	Callers int      `json:"callers"`
	Own     bool     `json:"own"`
	HoldS   float64  `json:"hold_s"`
	TTLMs   int      `json:"ttl_ms"`
	WaitMs  int      `json:"wait_ms"`
}

type tally struct {
	Cycles         int            `json:"cycles"`
	Seconds        float64        `json:"seconds"`
	Acquires       map[string]int `json:"acquires"`
	Failed         int            `json:"failed"`
	LeasesByCaller []int          `json:"leases_by_caller"`
	Bins           map[string]int `json:"bins"`
	GaveUp         int            `json:"gave_up"`
	AllCycles      int            `json:"all_cycles"`
	Errors         map[string]int `json:"errors"`
	ClientUs       float64        `json:"client_us"`
	ServerUs       float64        `json:"server_us"`
}

type seen struct {
	acquires map[int]int
	asked    int
	bins     map[int]int
	errors   map[string]int
	leases   int
	gaveUp   int
	all      int
}

func pool(driver string, address string) redsyncredis.Pool {
	switch driver {
	case "redigo":
		return redigoadapter.NewPool(&redigo.Pool{
			MaxIdle: 64,
			Dial:    func() (redigo.Conn, error) { return redigo.Dial("tcp", address) },
		})
	case "go-redis":
		return goredisadapter.NewPool(goredis.NewClient(&goredis.Options{Addr: address}))
	case "rueidis":
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true})
		if err != nil {
			panic(err)
		}
		return rueidisadapter.NewPool(rueidiscompat.NewAdapter(client))
	}
	panic("no driver " + driver)
}

func runNs(pids []int) float64 {
	total := 0.0
	for _, pid := range pids {
		paths, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
		for _, path := range paths {
			text, _ := os.ReadFile(path)
			ns, _ := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
			total += ns
		}
	}
	return total
}

func cpuUs() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	us := func(time syscall.Timeval) float64 { return float64(time.Sec)*1e6 + float64(time.Usec) }
	return us(usage.Utime) + us(usage.Stime)
}

// lock is a library's: acquire returns what the others take; an error that gaveUp names means that it tried in vain.
type lock struct {
	acquire func(ctx context.Context, resource string, ttl, wait time.Duration) (any, error)
	release func(ctx context.Context, held any) (bool, error)
	extend  func(ctx context.Context, held any, ttl time.Duration) (bool, error)
	held    func(ctx context.Context, held any) bool
	valid   func(held any) time.Duration // nil: the library does not say
	gaveUp  func(err error) bool
}

func connect(o order) lock {
	switch o.Name {
	case "bsm/redislock":
		return redislockOf(o)
	case "rueidislock":
		return rueidislockOf(o)
	}
	pools := []redsyncredis.Pool{}
	for _, text := range o.Urls {
		address, _ := url.Parse(text)
		pools = append(pools, pool(strings.TrimPrefix(o.Name, "redsync "), address.Host))
	}
	manager := redsync.New(pools...)
	return lock{
		acquire: func(ctx context.Context, resource string, ttl, _ time.Duration) (any, error) {
			mutex := manager.NewMutex(resource, redsync.WithExpiry(ttl))
			return mutex, mutex.LockContext(ctx)
		},
		release: func(ctx context.Context, held any) (bool, error) { return held.(*redsync.Mutex).UnlockContext(ctx) },
		extend: func(ctx context.Context, held any, _ time.Duration) (bool, error) {
			return held.(*redsync.Mutex).ExtendContext(ctx)
		},
		held: func(ctx context.Context, held any) bool {
			ok, err := held.(*redsync.Mutex).ValidContext(ctx)
			return ok && err == nil
		},
		valid: func(held any) time.Duration { return time.Until(held.(*redsync.Mutex).Until()) },
		gaveUp: func(err error) bool {
			var taken *redsync.ErrTaken
			return errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed)
		},
	}
}

func redislockOf(o order) lock {
	address, _ := url.Parse(o.Urls[0])
	client := redislock.New(goredis.NewClient(&goredis.Options{Addr: address.Host}))
	retry := redislock.LinearBackoff(100 * time.Millisecond)
	return lock{
		acquire: func(ctx context.Context, resource string, ttl, wait time.Duration) (any, error) {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			return client.Obtain(ctx, resource, ttl, &redislock.Options{RetryStrategy: retry})
		},
		release: func(ctx context.Context, held any) (bool, error) {
			err := held.(*redislock.Lock).Release(ctx)
			return err == nil, err
		},
		extend: func(ctx context.Context, held any, ttl time.Duration) (bool, error) {
			err := held.(*redislock.Lock).Refresh(ctx, ttl, nil)
			return err == nil, err
		},
		held: func(ctx context.Context, held any) bool {
			left, err := held.(*redislock.Lock).TTL(ctx)
			return left > 0 && err == nil
		},
		gaveUp: func(err error) bool { return errors.Is(err, redislock.ErrNotObtained) },
	}
}

// rueidisHeld is a lock that extends itself until its context ends.
type rueidisHeld struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// rueidislockOf has a locker per TTL, which is a locker's own; one key on one server, where its default are three.
func rueidislockOf(o order) lock {
	address, _ := url.Parse(o.Urls[0])
	var making sync.Mutex
	lockers := map[time.Duration]rueidislock.Locker{}
	locker := func(ttl time.Duration) rueidislock.Locker {
		making.Lock()
		defer making.Unlock()
		if lockers[ttl] == nil {
			made, err := rueidislock.NewLocker(rueidislock.LockerOption{
				ClientOption: rueidis.ClientOption{InitAddress: []string{address.Host}}, KeyMajority: 1, KeyValidity: ttl,
			})
			if err != nil {
				panic(err)
			}
			lockers[ttl] = made
		}
		return lockers[ttl]
	}
	locker(time.Duration(o.TTLMs) * time.Millisecond)
	return lock{
		acquire: func(asked context.Context, resource string, ttl, wait time.Duration) (any, error) {
			ctx, cancel := context.WithCancel(context.Background()) // the lock would end with a context that times out
			defer context.AfterFunc(asked, cancel)()
			defer time.AfterFunc(wait, cancel).Stop()
			held, release, err := locker(ttl).WithContext(ctx, resource)
			return rueidisHeld{held, release}, err
		},
		release: func(_ context.Context, held any) (bool, error) {
			held.(rueidisHeld).cancel()
			return true, nil
		},
		held: func(_ context.Context, held any) bool { return held.(rueidisHeld).ctx.Err() == nil },
		gaveUp: func(err error) bool {
			return errors.Is(err, rueidislock.ErrNotLocked) || errors.Is(err, context.Canceled)
		},
	}
}

func call(o order, lock lock, caller int, begin, measure, end time.Time) seen {
	s := seen{acquires: map[int]int{}, bins: map[int]int{}, errors: map[string]int{}}
	resource := "peers:hot"
	if o.Own {
		resource = "peers:r" + strconv.Itoa(caller)
	}
	ttl := time.Duration(o.TTLMs) * time.Millisecond
	wait := time.Duration(o.WaitMs) * time.Millisecond
	for {
		began := time.Now()
		if !began.Before(end) {
			return s
		}
		measured := !began.Before(measure)
		if measured {
			s.asked++
		}
		held, err := lock.acquire(context.Background(), resource, ttl, wait)
		granted := time.Now()
		if err == nil && measured { // however late it was granted: who waits longest must count
			us := math.Max(float64(granted.Sub(began).Nanoseconds())/1e3, 1)
			s.acquires[int(math.Log(us)/math.Log(1.01))]++
		}
		if err != nil {
			if lock.gaveUp(err) {
				s.gaveUp++
			} else {
				s.errors["lock"]++
				time.Sleep(time.Millisecond)
			}
			continue
		}
		if o.HoldS > 0 {
			time.Sleep(time.Duration(o.HoldS * float64(time.Second)))
		}
		if ok, err := lock.release(context.Background(), held); err != nil || !ok {
			s.errors["unlock"]++
			time.Sleep(time.Millisecond)
			continue
		}
		ended := time.Now()
		s.all++
		s.bins[int(ended.Sub(begin).Seconds()/0.1)]++
		if measured && !ended.After(end) {
			s.leases++
		}
	}
}

func main() {
	var o order
	input := json.NewDecoder(os.Stdin)
	if err := input.Decode(&o); err != nil {
		panic(err)
	}
	lock := connect(o)
	if len(os.Args) > 1 && os.Args[1] == "steps" {
		step(lock, input)
		return
	}
	os.Stderr.WriteString("begin\n")
	begin := time.Now()
	measure := begin.Add(time.Duration(o.WarmupS * float64(time.Second)))
	end := measure.Add(time.Duration(o.Seconds * float64(time.Second)))
	all := make([]seen, o.Callers)
	var callers sync.WaitGroup
	for caller := range all {
		callers.Add(1)
		go func() {
			defer callers.Done()
			all[caller] = call(o, lock, caller, begin, measure, end)
		}()
	}
	time.Sleep(time.Until(measure))
	client, server := cpuUs(), runNs(o.Pids)
	time.Sleep(time.Until(end))
	client, server = cpuUs()-client, (runNs(o.Pids)-server)/1e3
	callers.Wait()
	json.NewEncoder(os.Stdout).Encode(sum(o, all, client, server))
}

func sum(o order, all []seen, client, server float64) tally {
	t := tally{Seconds: o.Seconds, Bins: map[string]int{}, Errors: map[string]int{}, ClientUs: client, ServerUs: server}
	t.Acquires = map[string]int{}
	for _, s := range all {
		t.Cycles += s.leases
		t.LeasesByCaller = append(t.LeasesByCaller, s.leases)
		t.Failed += s.asked
		for bucket, count := range s.acquires {
			t.Acquires[strconv.Itoa(bucket)] += count
			t.Failed -= count
		}
		t.GaveUp += s.gaveUp
		t.AllCycles += s.all
		for bin, count := range s.bins {
			t.Bins[strconv.Itoa(bin)] += count
		}
		for name, count := range s.errors {
			t.Errors[name] += count
		}
	}
	return t
}
