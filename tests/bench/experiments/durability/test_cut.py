"""What a crash leaves of an append-only file."""

from pathlib import Path

from bench.experiments.durability.cut import append_only_files, keys_in


def test_only_whole_commands_of_an_append_only_file_count(tmp_path: Path) -> None:
    def command(*words: str) -> bytes:
        return f"*{len(words)}\r\n".encode() + b"".join(
            f"${len(word)}\r\n{word}\r\n".encode() for word in words
        )

    content = (
        command("SELECT", "0") + command("SET", "a", "1", "PXAT", "9") + command("set", "b", "1")
    )
    content += command("DEL", "a") + command("SET", "c", "1", "PXAT", "9")
    assert keys_in([content]) == {"b", "c"}
    assert keys_in([content[:-3]]) == {"b"}
    assert keys_in([content + b"\x00\x00"]) == {"b", "c"}
    for name in ("x.aof.1.base.rdb", "x.aof.1.base.aof", "x.aof.2.incr.aof", "x.aof.manifest"):
        (tmp_path / name).touch()
    assert [path.name for path in append_only_files(tmp_path)] == ["x.aof.2.incr.aof"]
