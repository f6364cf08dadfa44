// A lock by the protocol of `lockbench judge`: `acquire NAME` and `release NAME` on stdin, a line each on stdout.
// SET NX PX and a script that compares, over a socket of its own; the standard library only.
package main

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
)

const release = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("del",KEYS[1]) end return 0`

var server net.Conn
var replies *bufio.Reader

func ask(words ...string) string {
	fmt.Fprintf(server, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(server, "$%d\r\n%s\r\n", len(word), word)
	}
	line, err := replies.ReadString('\n')
	if err != nil {
		return "-" + err.Error()
	}
	return strings.TrimSpace(line)
}

func main() {
	place, _ := url.Parse(os.Args[1])
	var err error
	if server, err = net.Dial("tcp", place.Host); err != nil {
		panic(err)
	}
	replies = bufio.NewReader(server)
	owner := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	steps := bufio.NewScanner(os.Stdin)
	for steps.Scan() {
		verb, name, _ := strings.Cut(steps.Text(), " ")
		answer := ""
		if verb == "acquire" {
			for answer = ask("SET", name, owner, "NX", "PX", "2000"); answer == "$-1"; {
				time.Sleep(5 * time.Millisecond)
				answer = ask("SET", name, owner, "NX", "PX", "2000")
			}
		} else {
			answer = ask("EVAL", release, "1", name, owner)
		}
		switch answer {
		case "+OK", ":1":
			fmt.Println("ok")
		case ":0":
			fmt.Println("the lock had ended")
		default:
			fmt.Println(answer)
		}
	}
}
