"""`python -m bench` is `lockbench`: *arguments → exit code*."""

from bench.frame import main

if __name__ == "__main__":
    main()
