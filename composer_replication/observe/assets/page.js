const { data } = JSON.parse(document.getElementById('data').textContent);
showCurves(document.getElementById('curves'), data.families, data.arms);
showTrajectories(document.getElementById('trajectories'), data.trajectories);
document.documentElement.dataset.ready = 'true';
