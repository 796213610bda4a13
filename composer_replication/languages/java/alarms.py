"""Names of Java that are worth a look (`languages.tripwire`)."""

from __future__ import annotations

from collections.abc import Mapping

from composer_replication.languages import tripwire
from composer_replication.languages.java.syntax import is_read_within, root_of
from composer_replication.languages.trees import text_of, walk

_STARTS, _BEHIND = "starts programs or speaks to others", "looks behind the language"
_AROUND, _TESTS = "looks at its surroundings", "speaks to what runs the tests"
_BEFORE, _ENDS = "does something before any test begins", "ends the process or outlives a test"
_NAMES = {
    **dict.fromkeys(("ProcessBuilder", "ProcessHandle", "Socket", "ServerSocket", "SocketChannel", "HttpClient"), _STARTS),
    **dict.fromkeys(("Unsafe", "MethodHandles", "StackWalker", "getStackTrace", "forName", "Proxy", "Instrumentation"), _BEHIND),
    **dict.fromkeys(("setAccessible", "getDeclaredField", "getDeclaredFields"), _BEHIND),
    **dict.fromkeys(("getDeclaredMethod", "getDeclaredMethods", "ClassLoader", "URLClassLoader", "loadLibrary"), _BEHIND),
    **dict.fromkeys(("ObjectInputStream", "ScriptEngineManager", "JavaCompiler"), _BEHIND),
    **dict.fromkeys(("Files", "FileInputStream", "FileOutputStream", "RandomAccessFile", "FileChannel", "FileReader"), _AROUND),
    **dict.fromkeys(("FileWriter", "FileDescriptor", "FileSystems", "getenv", "getProperty", "getResource"), _AROUND),
    **dict.fromkeys(("Runtime", "halt", "addShutdownHook", "Thread", "Timer", "ExecutorService", "Executors"), _ENDS),
    **dict.fromkeys(("ForkJoinPool", "CompletableFuture"), _ENDS),
    **dict.fromkeys(("ServiceLoader", "AbstractProcessor"), _BEFORE),
    "zzcomposer": _TESTS,
}
_PACKAGES = {"org.junit": _TESTS, "junit.framework": _TESTS, "org.hamcrest": _TESTS, "sun.misc": _BEHIND, "jdk.internal": _BEHIND}
_MADE = {"static {}": _BEFORE, "native": _BEHIND, "System.exit": _ENDS, "a package of the tests' tools": _TESTS}
KINDS = {**_NAMES, **_PACKAGES, **_MADE}
"""Name of what is worth a look -> what the code does with it."""


def telling(sources: Mapping[str, bytes]) -> set[str]:
    """Return the names that are worth a look, and whether a file cannot be read."""
    return tripwire.telling(sources, _telling, is_read_within)


def _telling(path: str, source: bytes) -> set[str]:
    del path
    found: set[str] = set()
    for node in walk(root_of(source)):
        if node.type in ("identifier", "type_identifier"):
            found |= {text_of(node)} & _NAMES.keys()
        elif node.type in ("scoped_identifier", "scoped_type_identifier"):
            text = text_of(node)
            found |= {name for name in _PACKAGES if text == name or text.startswith(name + ".")}
        elif node.type == "static_initializer":
            found.add("static {}")
        elif node.type == "native":
            found.add("native")
        elif node.type == "method_invocation" and text_of(node).startswith("System.exit"):
            found.add("System.exit")
        elif node.type == "package_declaration" and any(name in text_of(node) for name in ("org.junit", "junit.framework")):
            found.add("a package of the tests' tools")
    return found
