module lockbench.local/peers

go 1.24

require (
	github.com/go-redsync/redsync/v4 v4.13.0
	github.com/gomodule/redigo v1.9.2
	github.com/redis/go-redis/v9 v9.7.0
	github.com/redis/rueidis v1.0.69
	github.com/redis/rueidis/rueidiscompat v1.0.69
)

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/hashicorp/errwrap v1.1.0 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
	golang.org/x/sys v0.31.0 // indirect
)
