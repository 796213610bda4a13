package zzcomposer;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.junit.runner.Description;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.manipulation.NoTestsRemainException;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;
import org.junit.runner.notification.RunNotifier;
import org.junit.runner.notification.StoppedByUserException;

/** Runs tests of JUnit 4, and those of JUnit 3 that extend TestCase. */
final class JUnit4 implements Runner.Framework {
    @Override
    public boolean takes(Class<?> tests) {
        if (Modifier.isAbstract(tests.getModifiers()) || tests.isInterface()) {
            return tests.isAnnotationPresent(org.junit.runner.RunWith.class);
        }
        if (junit.framework.TestCase.class.isAssignableFrom(tests) || tests.isAnnotationPresent(org.junit.runner.RunWith.class)) {
            return true;
        }
        for (Method method : tests.getMethods()) {
            if (method.isAnnotationPresent(org.junit.Test.class)) {
                return true;
            }
        }
        return false;
    }

    @Override
    public void run(Class<?> tests, Runner.Report report) {
        org.junit.runner.Runner runner = Request.classWithoutSuiteMethod(tests).getRunner();
        Map<Description, String> ids = new HashMap<>();
        Map<String, Integer> counts = new HashMap<>();
        count(runner.getDescription(), tests.getName(), report, counts);
        number(runner.getDescription(), tests.getName(), report, counts, new HashMap<>(), ids);
        try {
            Filter wanted = new Filter() {
                @Override
                public boolean shouldRun(Description description) {
                    if (description.isTest()) {
                        String id = ids.get(description);
                        return id == null || report.wants(Runner.base(id)) || description.getMethodName() == null
                            || description.getMethodName().equals("initializationError");
                    }
                    return description.getChildren().stream().anyMatch(this::shouldRun);
                }

                @Override
                public String describe() {
                    return "those that are asked for";
                }
            };
            wanted.apply(runner);
        } catch (NoTestsRemainException nothing) {
            return;
        }
        RunNotifier notifier = new RunNotifier();
        notifier.addListener(new Listener(ids, report, notifier));
        try {
            runner.run(notifier);
        } catch (StoppedByUserException stopped) {
            return;
        }
    }

    private static String plain(Description test, String top, Runner.Report report) {
        String name = test.getMethodName() == null ? test.getDisplayName() : test.getMethodName();
        int bracket = name.indexOf('[');
        String className = test.getClassName() == null || test.getMethodName() == null ? top : test.getClassName();
        return report.id(className, bracket > 0 ? name.substring(0, bracket) : name);
    }

    private static void count(Description node, String top, Runner.Report report, Map<String, Integer> counts) {
        if (node.isTest()) {
            String name = node.getMethodName();
            counts.merge(plain(node, top, report), name != null && name.indexOf('[') > 0 ? 2 : 1, Integer::sum);
        }
        for (Description child : node.getChildren()) {
            count(child, top, report, counts);
        }
    }

    /** Gives tests of one name numbers, in the order of the tree. */
    private static void number(
        Description node, String top, Runner.Report report, Map<String, Integer> counts, Map<String, Integer> next,
        Map<Description, String> ids
    ) {
        if (node.isTest()) {
            String id = plain(node, top, report);
            ids.putIfAbsent(node, counts.get(id) == 1 ? id : id + "[" + next.merge(id, 1, Integer::sum) + "]");
        }
        for (Description child : node.getChildren()) {
            number(child, top, report, counts, next, ids);
        }
    }

    private static final class Listener extends RunListener {
        private final Map<Description, String> ids;
        private final Runner.Report report;
        private final RunNotifier notifier;
        private final Map<String, Throwable> failures = new HashMap<>();
        private final Set<String> skipped = new HashSet<>();

        Listener(Map<Description, String> ids, Runner.Report report, RunNotifier notifier) {
            this.ids = ids;
            this.report = report;
            this.notifier = notifier;
        }

        private String id(Description test) {
            return ids.get(test);
        }

        @Override
        public void testStarted(Description test) {
            if (id(test) != null && !"initializationError".equals(test.getMethodName())) {
                report.begun(id(test));
            }
        }

        @Override
        public void testFailure(Failure failure) {
            Description test = failure.getDescription();
            String id = id(test);
            if (id == null || !test.isTest() || "initializationError".equals(test.getMethodName())) {
                report.group(test.getClassName() == null ? "" : test.getClassName(), failure.getException());
            } else {
                failures.putIfAbsent(id, failure.getException());
            }
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            String id = id(failure.getDescription());
            if (id != null) {
                skipped.add(id);
            }
        }

        @Override
        public void testIgnored(Description test) {
            if (test.isTest() && id(test) != null) {
                report.done(id(test), "skipped", null);
            } else {
                for (Description child : test.getChildren()) {
                    testIgnored(child);
                }
            }
        }

        @Override
        public void testFinished(Description test) {
            String id = id(test);
            if (id != null && !"initializationError".equals(test.getMethodName())) {
                Throwable why = failures.get(id);
                report.done(id, why != null ? "failed" : skipped.contains(id) ? "skipped" : "passed", why);
            }
            if (report.stopped()) {
                notifier.pleaseStop();
            }
        }
    }
}
