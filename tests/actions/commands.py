"""Shell commands in groups: ways to write one command, and near misses that are others. `make_pairs.py` runs all of them.

(class of the equal ones, equal ones, near misses)
"""

from __future__ import annotations

GROUPS: list[tuple[str, list[str], list[str]]] = [
    # --- one command in other words -------------------------------------------------------------------------------------
    (
        "quoting",
        ["cat src/a.py", "cat 'src/a.py'", 'cat "src/a.py"', "cat   src/a.py ", "cat src/a\\.py"],
        ["cat src/b.py", "cat 'src/a.py '"],
    ),
    ("quoting", ["cat ./src/a.py", "cat src//a.py", "cat src/./a.py"], ["cat src/a.py src/b.py", "cat src"]),
    (
        "quoting",
        ["cat 'dir with space/x.txt'", "cat dir\\ with\\ space/x.txt", 'cat "dir with space"/x.txt'],
        ["cat dir with space/x.txt", "cat 'dir with  space/x.txt'"],
    ),
    (
        "quoting",
        ["grep 'total' src/a.py", 'grep "total" src/a.py', "grep total src/a.py", "grep tot'al' ./src/a.py"],
        ["grep 'Total' src/a.py", "grep 'total ' src/a.py", "grep tota src/b.py"],
    ),
    (
        "quoting",
        ["grep 'price$' big.txt", 'grep "price$" big.txt', "grep price$ big.txt"],
        ["grep '^price' big.txt", "grep 'price\\$' big.txt", 'grep "pric$" big.txt'],
    ),
    ("quoting", ["grep 'a.b' big.txt", 'grep "a.b" big.txt'], ["grep -F 'a.b' big.txt", "grep a\\\\.b big.txt"]),
    ("quoting", ["echo 'a  b'", 'echo "a  b"', "echo a\\ \\ b"], ["echo a  b", "echo 'a b'", "echo 'a  b '"]),
    ("quoting", ["echo '$HOME'", "echo \\$HOME", 'echo "\\$HOME"'], ["echo $HOME", 'echo "$HOME"', 'echo "$\\\nHOME"']),
    ("quoting", ["echo '*.py'", 'echo "*.py"', "echo \\*.py"], ["echo *.py", "echo '*.txt'"]),
    ("quoting", ["echo '# no comment'", 'echo "# no comment"', "echo \\# no comment"], ["echo # no comment", "echo no comment"]),
    ("quoting", ["printf '%s\\n' x", 'printf "%s\\n" x', "printf %s\\\\n x"], ["printf %s\\n x", "printf '%s' x"]),
    (
        "quoting",
        ["ls 'src' 2>/dev/null", "ls src 2> /dev/null", "2>/dev/null ls src"],
        ["ls src >/dev/null", "ls tests 2>/dev/null"],
    ),
    (
        "layout",
        ["ls src # what is there", "ls src", "ls src;", "\nls src\n", "ls \\\n  src"],
        ["# ls src", "ls 'src # what is there'", "ls; src"],
    ),
    (
        "layout",
        ["cat big.txt | head -n 3", "cat big.txt|head -n 3", "cat big.txt |\n head -n 3", "cat big.txt | head -n3"],
        ["cat big.txt | head -n 4", "cat big.txt || head -n 3", "cat big.txt | tail -n 3"],
    ),
    (
        "layout",
        ["cd src && ls", "cd src &&\n  ls", "cd 'src'   &&   ls"],
        ["cd src; ls", "cd src || ls", "cd . && ls", "ls && cd src"],
    ),
    (
        "layout",
        ["echo one; echo two", "echo one\necho two", "echo one ; echo two;", "echo one # x\necho two"],
        ["echo two; echo one", "echo one echo two", "echo one | echo two", "echo 'one; echo two'"],
    ),
    ("layout", ["cat no.txt && echo yes", "cat no.txt&&echo yes"], ["cat no.txt; echo yes", "cat no.txt || echo yes"]),
    (
        "layout",
        ["echo hi > out.txt", "echo hi >out.txt", "> out.txt echo hi", "echo > out.txt hi", "echo hi 1> out.txt"],
        ["echo hi >> out.txt", "echo hi 2> out.txt", "echo hi > out2.txt", "echo hi '>' out.txt"],
    ),
    (
        "layout",
        ["echo hi >> notes.txt", "echo hi>>notes.txt", ">>notes.txt echo hi"],
        ["echo hi > notes.txt", "echo hi2>>notes.txt"],
    ),
    ("layout", ["cat no.txt > out.txt 2>&1", "cat no.txt >out.txt 2>&1"], ["cat no.txt 2>&1 > out.txt", "cat no.txt > out.txt"]),
    ("layout", ["wc -l < big.txt", "wc -l 0< big.txt", "<big.txt wc -l"], ["wc -l big.txt", "wc -c < big.txt"]),
    (
        "layout",
        ["PYTHONPATH=src python -c 'print(1)'", "PYTHONPATH='src' python -c 'print(1)'"],
        ["python -c 'print(2)'", "python -c 'print(1) '' '3"],
    ),
    # --- flags ----------------------------------------------------------------------------------------------------------
    (
        "flags",
        ["ls -la", "ls -al", "ls -l -a", "ls -a -l", "ls --all -l", "ls -la ."],
        ["ls -l", "ls -a", "ls -lA", "ls -la src"],
    ),
    ("flags", ["ls -la src", "ls -al src", "ls src -la", "ls -l src -a"], ["ls -ld src", "ls -lR src", "ls -lr src"]),
    ("flags", ["ls -R", "ls --recursive", "ls -R ."], ["ls -r", "ls -d", "ls"]),
    ("flags", ["ls -lh big.txt", "ls -hl big.txt", "ls --human-readable -l big.txt"], ["ls -l src", "ls -ls big.txt"]),
    ("flags", ["ls -1", "ls -1 ."], ["ls -m", "ls -1a"]),
    ("flags", ["ls -ltr", "ls -rtl", "ls -l --reverse -t"], ["ls -lSr", "ls -lr -a"]),
    ("flags", ["ls -A src", "ls --almost-all src"], ["ls -a src", "ls src tests"]),
    (
        "flags",
        ["cat -n src/a.py", "cat --number src/a.py", "cat src/a.py -n", "cat -n ./src/a.py"],
        ["cat src/a.py", "cat -b src/a.py", "cat -E src/a.py", "nl src/a.py"],
    ),
    (
        "flags",
        ["cat -ns big.txt", "cat -sn big.txt", "cat -s -n big.txt", "cat --squeeze-blank --number big.txt"],
        ["cat -s big.txt", "cat -nE big.txt"],
    ),
    (
        "flags",
        [
            "head -n 5 big.txt",
            "head -n5 big.txt",
            "head -5 big.txt",
            "head --lines=5 big.txt",
            "head --lines 5 big.txt",
            "head big.txt -n 5",
        ],
        ["head -c 5 big.txt", "head -n 6 big.txt", "head -n -5 big.txt", "tail -n 5 big.txt", "head -n 15 big.txt"],
    ),
    (
        "flags",
        ["head big.txt", "head -n 10 big.txt", "head -10 big.txt"],
        ["head -n 1 big.txt", "tail big.txt", "head -v big.txt"],
    ),
    (
        "flags",
        ["tail -n 3 big.txt", "tail -n3 big.txt", "tail -3 big.txt", "tail --lines=3 big.txt"],
        ["tail -n +3 big.txt", "tail -c 3 big.txt", "head -n 3 big.txt"],
    ),
    ("flags", ["tail -n +4 big.txt", "tail --lines=+4 big.txt"], ["tail -n 4 big.txt", "tail -n -5 big.txt"]),
    (
        "flags",
        ["head -c 20 big.txt", "head --bytes=20 big.txt", "head -c20 big.txt"],
        ["head -c 21 big.txt", "head -n 20 big.txt"],
    ),
    (
        "flags",
        ["wc -lw big.txt", "wc -wl big.txt", "wc -l -w big.txt", "wc --words --lines big.txt"],
        ["wc -lc big.txt", "wc big.txt", "wc -l big.txt"],
    ),
    (
        "flags",
        ["wc -l src/a.py src/b.py", "wc --lines src/a.py src/b.py", "wc src/a.py src/b.py -l"],
        ["wc -l src/b.py src/a.py", "wc -l src/a.py"],
    ),
    (
        "flags",
        [
            "grep -rn total .",
            "grep -nr total .",
            "grep -n -r total .",
            "grep -r total . -n",
            "grep --recursive --line-number total .",
            "grep -rn 'total' ./",
        ],
        [
            "grep -r total .",
            "grep -rl total .",
            "grep -rn Total .",
            "grep -rin total .",
            "grep -rn total src",
            "grep -rnw tota .",
            "grep -rn total",
            "grep -rn . total",
        ],
    ),
    (
        "flags",
        ["grep -rn def src", "grep -nr def src", "grep -rn -e def src", "grep -rne def src"],
        ["grep -rn def tests", "grep -rc def src", "grep -rn -v def src", "grep -rh def src", "grep -rn def ./src"],
    ),
    (
        "flags",
        ["grep -in total src/a.py", "grep -ni total src/a.py", "grep --ignore-case -n total src/a.py", "grep total -in src/a.py"],
        ["grep -n total src/a.py", "grep -iv total src/a.py", "grep -ic total src/a.py"],
    ),
    (
        "flags",
        ["grep -c price big.txt", "grep --count price big.txt", "grep price -c big.txt"],
        ["grep -l price big.txt", "grep -o price big.txt", "grep price big.txt"],
    ),
    (
        "flags",
        [
            "grep -A 2 -B 1 price big.txt",
            "grep -B 1 -A 2 price big.txt",
            "grep -A2 -B1 price big.txt",
            "grep --after-context=2 --before-context=1 price big.txt",
        ],
        ["grep -A 1 -B 2 price big.txt", "grep -C 2 price big.txt", "grep -A 2 price big.txt"],
    ),
    (
        "flags",
        ["grep -C 1 price big.txt", "grep --context=1 price big.txt", "grep -C1 price big.txt"],
        ["grep -A 1 price big.txt", "grep -m 1 price big.txt"],
    ),
    (
        "flags",
        ["grep -E 'a|b' big.txt", "grep --extended-regexp 'a|b' big.txt", "grep 'a|b' -E big.txt"],
        ["grep 'a|b' big.txt", "grep -F 'a|b' big.txt", "grep -E 'a|c' big.txt", "grep -E a | b big.txt"],
    ),
    (
        "flags",
        ["grep -rl total src", "grep -lr total src", "grep --files-with-matches -r total src"],
        ["grep -rL total src", "grep -l total src/a.py", "grep -rn total src"],
    ),
    (
        "flags",
        ["grep -m 1 -n price big.txt", "grep -n -m1 price big.txt", "grep --max-count=1 -n price big.txt"],
        ["grep -m 2 -n price big.txt", "grep -n price big.txt"],
    ),
    (
        "flags",
        [
            "grep -rn --include='*.py' total .",
            "grep -rn total . --include='*.py'",
            "grep --include '*.py' -rn total .",
            'grep -rn --include="*.py" total .',
        ],
        [
            'grep -rn --include="*.py" total',
            "grep -rn --include='*.txt' total .",
            "grep -rn --exclude='*.py' total .",
            "grep -rn total .",
        ],
    ),
    (
        "flags",
        ["grep -w total src/a.py", "grep --word-regexp total src/a.py"],
        ["grep -x total src/a.py", "grep -w tota src/a.py"],
    ),
    ("flags", ["grep -- -n big.txt", "grep -e -n big.txt", "grep -e-n big.txt"], ["grep -n big.txt", "grep -n -- -x big.txt"]),
    (
        "flags",
        [
            "sed -n '1,3p' big.txt",
            'sed -n "1,3p" big.txt',
            "sed -n 1,3p big.txt",
            "sed --quiet 1,3p big.txt",
            "sed -n -e 1,3p big.txt",
            "sed 1,3p -n big.txt",
        ],
        ["sed -n '1,4p' big.txt", "sed '1,3p' big.txt", "sed -n '3p' big.txt", "sed -n '1,3!p' big.txt"],
    ),
    (
        "flags",
        ["sed -E 's/(p)/<\\1>/' big.txt", "sed -r 's/(p)/<\\1>/' big.txt", "sed --regexp-extended 's/(p)/<\\1>/' big.txt"],
        ["sed 's/(p)/<&>/' big.txt", "sed -E 's/(p)/<\\1>/g' big.txt"],
    ),
    (
        "flags",
        ["sort -rn data.csv", "sort -nr data.csv", "sort -n -r data.csv", "sort --reverse --numeric-sort data.csv"],
        ["sort -n data.csv", "sort -r data.csv", "sort -rnu data.csv"],
    ),
    (
        "flags",
        ["sort -t , -k 2 data.csv", "sort -k2 -t, data.csv", "sort --key=2 --field-separator=, data.csv"],
        ["sort -t , -k 1 data.csv", "sort -k 2 data.csv"],
    ),
    (
        "flags",
        ["sort data.csv | uniq -c", "sort data.csv|uniq --count"],
        ["sort data.csv | uniq -d", "uniq -c data.csv", "sort -u data.csv"],
    ),
    (
        "flags",
        ["rm -rf src", "rm -fr src", "rm -r -f src", "rm -R -f src", "rm --recursive --force src", "rm src -rf"],
        ["rm -r tests", "rm -f src", "rm -rf src/a.py", "rm -rf ./src tests"],
    ),
    (
        "flags",
        ["rm -f notes.txt", "rm --force notes.txt", "rm ./notes.txt -f"],
        ["rm notes.txt", "rm -f notes.tx", "rm -f empty.txt"],
    ),
    ("flags", ["mkdir -p new/deep", "mkdir --parents new/deep", "mkdir new/deep -p"], ["mkdir new/deep", "mkdir -p new/deeper"]),
    (
        "flags",
        ["cp -r src copy", "cp -R src copy", "cp --recursive src copy"],
        ["cp src copy", "cp -r copy src", "cp -r tests copy"],
    ),
    (
        "flags",
        ["git status -sb", "git status -s -b", "git status --short --branch", "git status -bs"],
        ["git status -s", "git status", "git status -b"],
    ),
    (
        "flags",
        ["git diff --stat --cached", "git diff --cached --stat", "git diff --staged --stat"],
        ["git diff --stat", "git diff --cached", "git diff --name-only --cached"],
    ),
    (
        "flags",
        [
            "git log --oneline -n 2",
            "git log -n 2 --oneline",
            "git log --oneline -2",
            "git log --max-count=2 --oneline",
            "git log --oneline -n2",
        ],
        ["git log --oneline -n 1", "git log -n 2", "git log --oneline"],
    ),
    (
        "pytest",
        ["pytest -q tests/", "pytest tests -q", "pytest --quiet tests", "pytest -q ./tests"],
        ["pytest tests", "pytest -q tests/test_a.py", "pytest -qq tests", "pytest -v tests"],
    ),
    (
        "pytest",
        [
            "pytest -xq tests/test_a.py",
            "pytest -q -x tests/test_a.py",
            "pytest tests/test_a.py --exitfirst -q",
            "pytest -qx ./tests/test_a.py",
        ],
        ["pytest -q tests/test_a.py", "pytest -xq tests/test_b.py"],
    ),
    (
        "pytest",
        ["pytest -q -k total tests", "pytest tests -k total -q", "pytest -k 'total' -q tests/"],
        ["pytest -q -k 'not total' tests", "pytest -q -k tota_ tests"],
    ),
    (
        "pytest",
        ["pytest --tb=short -q tests", "pytest -q tests --tb short", "pytest -q --tb=short tests/"],
        ["pytest --tb=no -q tests", "pytest --tb=line -q tests"],
    ),
    (
        "pytest",
        ["python -m pytest -q tests/test_a.py::test_total", "python -m pytest ./tests/test_a.py::test_total -q"],
        ["python -m pytest -q tests/test_a.py::test_count", "python -m pytest -q tests/test_a.py"],
    ),
    (
        "pytest",
        ["pytest -q --maxfail=1 tests", "pytest tests --maxfail 1 -q"],
        ["pytest -q --maxfail=2 tests", "pytest -q tests"],
    ),
    (
        "pytest",
        ["pytest -q tests 2>&1 | tail -n 3", "pytest tests/ -q 2>&1 | tail -3"],
        ["pytest -q tests 2>&1 | head -n 3", "pytest -q tests | tail -n 1"],
    ),
    (
        "combined",
        ["cd src && grep -rn total . | head -n 2", "cd src && grep -nr 'total' . | head -2"],
        ["cd tests && grep -rn total . | head -n 2", "cd src && grep -rn total . | tail -n 2"],
    ),
    (
        "combined",
        ["ls -la src && cat src/a.py", "ls -al src && cat ./src/a.py", "ls src -la &&\ncat 'src/a.py'"],
        ["ls -la src && cat src/b.py", "cat src/a.py && ls -la src", "ls -la src || cat src/a.py"],
    ),
    (
        "combined",
        ["mkdir -p new && echo x > new/y.txt", "mkdir --parents new && >new/y.txt echo x"],
        ["mkdir -p new && echo y > new/y.txt", "mkdir -p new && echo x >> notes.txt"],
    ),
    # --- how a path is written, where it is shown ---------------------------------------------------------------------------
    ("quoting", ["ls src/a.py", "ls 'src/a.py'"], ["ls ./src/a.py", "ls src//a.py"]),
    ("flags", ["wc -l src/a.py", "wc --lines src/a.py"], ["wc -l ./src/a.py", "wc -l src/./a.py"]),
    ("flags", ["rm -v notes.txt", "rm --verbose notes.txt"], ["rm -v ./notes.txt"]),
    ("flags", ["head -n 1 src/a.py big.txt", "head src/a.py big.txt -n1"], ["head -n 1 ./src/a.py big.txt"]),
    ("flags", ["head -q -n 1 src/a.py big.txt", "head -n1 -q ./src/a.py big.txt"], ["head -v -n 1 ./src/a.py big.txt"]),
    ("flags", ["sed -n F src/a.py", "sed --quiet F src/a.py"], ["sed -n F ./src/a.py"]),
    (
        "flags",
        ["grep -c total src/a.py", "grep --count total ./src/a.py"],
        ["grep -cH total ./src/a.py", "grep -l total ./src/a.py"],
    ),
    (
        "flags",
        ["grep -rh total src", "grep -hr total ./src", "grep -h -r total src"],
        ["grep -r total ./src", "grep -rhl total ./src"],
    ),
    ("flags", ["grep -rhn total", "grep -rhn total .", "grep -n -h -r total ."], ["grep -rln total", "grep -rHn total ."]),
    ("combined", ["grep -rl total | cut -d/ -f1", "grep -r -l total |cut -d/ -f1"], ["grep -rl total . | cut -d/ -f1"]),
    ("combined", ["grep -rl total src > list", "grep -lr total src >list"], ["grep -rl total ./src > list"]),
    ("combined", ["ls -R src | head -1 > out", "ls --recursive src | head -n 1 >out"], ["ls -R ./src | head -1 > out"]),
    ("combined", ["cat no.txt 2> out.txt", "cat no.txt 2>out.txt"], ["cat ./no.txt 2> out.txt", "cat ./no.txt &> out.txt"]),
    ("combined", ["cat no.txt 2>&1 | cut -c1-8", "cat 'no.txt' 2>&1|cut -c1-8"], ["cat ./no.txt 2>&1 | cut -c1-8"]),
    ("combined", ["cat no.txt 2>&1 | head -c 8", "cat 'no.txt' 2>&1|head -c8"], ["cat ./no.txt 2>&1 | head -c 8"]),
    # --- what looks like a descriptor, or a comment -------------------------------------------------------------------------
    ("layout", ["echo 2 >x", "echo 2 > x"], ["echo 2>x", "echo 2\\\n>x"]),
    ("layout", ["echo {fd} >x", "echo {fd} > x"], ["echo {fd}>x"]),
    ("layout", ["echo a > '#x'", "echo a >'#x'"], ["echo a > #x"]),
    # --- expansions: nothing here may be moved ----------------------------------------------------------------------------
    ("expansion", ["cat src/*.py", "cat  src/*.py"], ["cat 'src/*.py'", "cat src/?.txt", "cat src/*"]),
    ("expansion", ["ls *.txt", "ls   *.txt # all"], ["ls '*.txt'", "ls *.csv", "ls -l *.txt"]),
    ("expansion", ["echo $HOME/x", "echo  $HOME/x"], ["echo '$HOME/x'", "echo $HOM/x", "echo ~/y"]),
    ("expansion", ["echo {a,b}", "echo  {a,b}"], ["echo '{a,b}'", "echo a,b"]),
    ("expansion", ["for f in a b; do echo $f; done"], ["for f in b a; do echo $f; done"]),
    ("expansion", ["cat <<E\nx\nE"], ["cat <<E\ny\nE", "cat <<'E'\n$x\nE"]),
    ("expansion", ["A=$HOME printenv A", "A=$HOME  printenv A"], ["A='$HOME' printenv A", "A=HOME printenv A"]),
    ("expansion", ['A=$HOME; echo "$A"', 'A=$HOME\necho "$A"'], ["A='$HOME'; echo \"$A\""]),
    ("expansion", ["A=~ printenv A", "A=~   printenv A"], ["A='~' printenv A"]),
    (
        "expansion",
        [
            "PYTHONPATH=$PWD python -c 'import sys; print(len(sys.path[1]))'",
            "PYTHONPATH=$PWD  python -c 'import sys; print(len(sys.path[1]))'",
        ],
        [
            "PYTHONPATH='$PWD/x' python -c 'import sys; print(len(sys.path[1]))'",
            "PYTHONPATH='$PWD' python -c 'import sys; print(len(sys.path[1]))'",
        ],
    ),
    ("expansion", ["echo $(ls src)"], ["echo '$(ls src)'", "echo $(ls tests)"]),
]
