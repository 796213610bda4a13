package zzcomposer;

import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.engine.JupiterTestEngine;
import org.junit.platform.engine.DiscoverySelector;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.TestSource;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.Launcher;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.TestPlan;
import org.junit.platform.launcher.core.LauncherConfig;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/** Runs tests of JUnit 5 and newer, with its own engine and no other. */
final class Jupiter implements Runner.Framework {
    private static final Pattern NUMBER = Pattern.compile("\\[[\\w-]+:#(\\d+)\\]");

    private final Launcher launcher = LauncherFactory.create(
        LauncherConfig.builder()
            .enableTestEngineAutoRegistration(false)
            .enableTestExecutionListenerAutoRegistration(false)
            .enablePostDiscoveryFilterAutoRegistration(false)
            .addTestEngines(new JupiterTestEngine())
            .build());

    @Override
    public boolean takes(Class<?> tests) {
        return !Modifier.isAbstract(tests.getModifiers()) && !tests.isInterface();
    }

    @Override
    public void run(Class<?> tests, Runner.Report report) {
        TestPlan plan = launcher.discover(request(List.of(DiscoverySelectors.selectClass(tests))));
        List<DiscoverySelector> wanted = new ArrayList<>();
        for (TestIdentifier root : plan.getRoots()) {
            for (TestIdentifier one : plan.getDescendants(root)) {
                if (one.getSource().orElse(null) instanceof MethodSource source && report.wants(plain(source, tests, report))) {
                    wanted.add(DiscoverySelectors.selectUniqueId(one.getUniqueId()));
                }
            }
        }
        if (!wanted.isEmpty()) {
            launcher.execute(request(wanted), new Listener(tests, report));
        }
    }

    private static LauncherDiscoveryRequest request(List<DiscoverySelector> selectors) {
        return LauncherDiscoveryRequestBuilder.request().selectors(selectors).build();
    }

    private static String plain(MethodSource source, Class<?> tests, Runner.Report report) {
        String name = source.getMethodName();
        String types = source.getMethodParameterTypes();
        if (types != null && !types.isBlank() && isOverloaded(source)) {
            name += "(" + types.replaceAll("[\\w.]+\\.", "").replaceAll("\\s", "") + ")";
        }
        return report.id(source.getClassName(), name);
    }

    private static boolean isOverloaded(MethodSource source) {
        int count = 0;
        for (Class<?> one = source.getJavaClass(); one != null; one = one.getSuperclass()) {
            for (java.lang.reflect.Method method : one.getDeclaredMethods()) {
                count += method.getName().equals(source.getMethodName()) && !method.isSynthetic() ? 1 : 0;
            }
        }
        return count > 1;
    }

    private static final class Listener implements TestExecutionListener {
        private final Class<?> tests;
        private final Runner.Report report;
        private TestPlan plan;

        Listener(Class<?> tests, Runner.Report report) {
            this.tests = tests;
            this.report = report;
        }

        @Override
        public void testPlanExecutionStarted(TestPlan plan) {
            this.plan = plan;
        }

        /** Returns the id of a test or of what gives tests; nothing for a class. */
        private String id(TestIdentifier one) {
            Optional<TestIdentifier> here = Optional.of(one);
            while (here.isPresent()) {
                TestSource source = here.get().getSource().orElse(null);
                if (source instanceof MethodSource method) {
                    return plain(method, tests, report) + number(one);
                }
                here = plan.getParent(here.get());
            }
            return null;
        }

        private static String number(TestIdentifier one) {
            Matcher found = NUMBER.matcher(one.getUniqueId());
            List<String> numbers = new ArrayList<>();
            while (found.find()) {
                numbers.add(found.group(1));
            }
            return numbers.isEmpty() ? "" : "[" + String.join(".", numbers) + "]";
        }

        @Override
        public void executionStarted(TestIdentifier one) {
            if (one.isTest() && id(one) != null) {
                report.begun(id(one));
            }
        }

        @Override
        public void executionSkipped(TestIdentifier one, String reason) {
            if (one.isTest() && id(one) != null) {
                report.done(id(one), "skipped", null);
            }
            for (TestIdentifier child : plan.getChildren(one)) {
                executionSkipped(child, reason);
            }
        }

        @Override
        public void executionFinished(TestIdentifier one, TestExecutionResult result) {
            Throwable why = result.getThrowable().orElse(null);
            boolean failed = result.getStatus() == TestExecutionResult.Status.FAILED;
            String id = id(one);
            if (one.isTest() && id != null) {
                boolean aborted = result.getStatus() == TestExecutionResult.Status.ABORTED;
                report.done(id, failed ? "failed" : aborted ? "skipped" : "passed", failed ? why : null);
            } else if (failed && id != null) {
                report.done(id, "failed", why);
            } else if (failed) {
                String name = one.getSource().orElse(null) instanceof ClassSource source ? source.getClassName() : "";
                report.group(name, why);
            }
        }
    }
}
