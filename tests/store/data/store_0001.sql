BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('v3.2.0.a');
CREATE TABLE studies (
	study_id INTEGER NOT NULL, 
	study_name VARCHAR(512) NOT NULL, 
	PRIMARY KEY (study_id)
);
INSERT INTO "studies" VALUES(1,'old');
CREATE TABLE study_directions (
	study_direction_id INTEGER NOT NULL, 
	direction VARCHAR(8) NOT NULL, 
	study_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	PRIMARY KEY (study_direction_id), 
	UNIQUE (study_id, objective), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_directions" VALUES(1,'MAXIMIZE',1,0);
CREATE TABLE study_system_attributes (
	study_system_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_system_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
CREATE TABLE study_user_attributes (
	study_user_attribute_id INTEGER NOT NULL, 
	study_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (study_user_attribute_id), 
	UNIQUE (study_id, "key"), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "study_user_attributes" VALUES(1,1,'tempopt','{"metric": "val_accuracy"}');
CREATE TABLE tempopt_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT tempopt_alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "tempopt_alembic_version" VALUES('0001');
CREATE TABLE tempopt_measurement (
	ticket_id INTEGER NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	step BIGINT NOT NULL, 
	value DOUBLE, 
	PRIMARY KEY (ticket_id, name, step), 
	CONSTRAINT tempopt_measurement_ticket FOREIGN KEY(ticket_id) REFERENCES tempopt_ticket (id)
);
INSERT INTO "tempopt_measurement" VALUES(1,'report',5,0.5);
INSERT INTO "tempopt_measurement" VALUES(2,'report',5,0.6);
INSERT INTO "tempopt_measurement" VALUES(2,'report',10,0.7);
INSERT INTO "tempopt_measurement" VALUES(3,'report',5,0.1);
INSERT INTO "tempopt_measurement" VALUES(4,'report',5,NULL);
INSERT INTO "tempopt_measurement" VALUES(5,'report',5,0.4);
INSERT INTO "tempopt_measurement" VALUES(7,'report',5,0.2);
INSERT INTO "tempopt_measurement" VALUES(7,'report',10,0.3);
INSERT INTO "tempopt_measurement" VALUES(8,'report',5,0.9);
CREATE TABLE tempopt_study (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR(255) NOT NULL, 
	spec TEXT NOT NULL, 
	spec_hash VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	created DATETIME NOT NULL, 
	CONSTRAINT tempopt_study_name UNIQUE (name)
);
INSERT INTO "tempopt_study" VALUES(1,'old','{"study": {"name": "old", "metric": "val_accuracy", "direction": "maximize", "trials": 8, "arms": {"unit": null, "constant": null}, "candidates": 3, "seeds": {"choose": 4, "confirm": 8}, "seed": 0, "test": "t", "confirm_on": "test", "validate_at": "final", "sampler": {"name": "tpe"}, "pruner": {"name": "median"}, "parallel": 4, "max_attempts": 3, "evaluate_only": null}, "model": {"class_path": "lightning_modules.max_retrieval.MaxRetrieval", "init_args": {"d_model": 8}}, "data": {"class_path": "lightning_modules.max_retrieval.MaxRetrievalData", "init_args": {}}, "trainer": {"max_steps": 10}, "search": {"temperature_init": {"low": 0.25, "high": 4.0, "log": true}}, "attach": null, "resources": {"workers": null, "threads": null}}','5c9419e2bc590f6a2540f69d20a0d4eafd849caac34f52e7c182bf5a7a9a933e','running','2026-11-21 08:31:37.664479');
CREATE TABLE tempopt_ticket (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	study_id INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	stage INTEGER NOT NULL, 
	arm VARCHAR(16) NOT NULL, 
	number INTEGER NOT NULL, 
	candidate INTEGER, 
	pair INTEGER, 
	seed BIGINT NOT NULL, 
	parameters TEXT, 
	trial_number INTEGER, 
	state VARCHAR(16) NOT NULL, 
	outcome VARCHAR(16), 
	attempt INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	value DOUBLE, 
	diverged_at BIGINT, 
	error TEXT, 
	agent VARCHAR(255), 
	seconds DOUBLE NOT NULL, 
	steps BIGINT, 
	total_steps BIGINT, 
	code TEXT, 
	started DATETIME, 
	finished DATETIME, 
	CONSTRAINT tempopt_ticket_study FOREIGN KEY(study_id) REFERENCES tempopt_study (id), 
	CONSTRAINT tempopt_ticket_number UNIQUE (study_id, kind, number)
);
INSERT INTO "tempopt_ticket" VALUES(1,1,'unit',0,'unit',0,NULL,NULL,1,'{"temperature_init": 1.0}',NULL,'done','complete',1,0,0.5,NULL,NULL,'host:1',1.5,10,10,'c','2026-11-21 08:31:38.527169','2026-11-21 08:31:38.554427');
INSERT INTO "tempopt_ticket" VALUES(2,1,'search',2,'search',0,NULL,NULL,4611686018427387904,'{"temperature_init": 0.3, "schedule": "constant", "n": 1, "temperature_final": 1.0}',0,'done','complete',1,0,0.7,NULL,NULL,'host:1',2.5,10,10,'c','2026-11-21 08:31:38.563945','2026-11-21 08:31:38.703312');
INSERT INTO "tempopt_ticket" VALUES(3,1,'search',2,'search',1,NULL,NULL,4611686018427387905,'{"temperature_init": 0.425, "schedule": "linear", "n": 3, "temperature_final": 1.0}',1,'done','pruned',1,0,0.1,NULL,NULL,'host:1',1.5,5,10,'c','2026-11-21 08:31:38.707985','2026-11-21 08:31:38.785734');
INSERT INTO "tempopt_ticket" VALUES(4,1,'search',2,'search',2,NULL,NULL,4611686018427387906,'{"temperature_init": 0.55, "schedule": null, "n": 5, "temperature_final": 1.0}',2,'done','diverged',1,0,NULL,5,NULL,'host:1',1.0,5,10,'c','2026-11-21 08:31:38.790128','2026-11-21 08:31:38.837959');
INSERT INTO "tempopt_ticket" VALUES(5,1,'search',2,'search',3,NULL,NULL,4611686018427387907,'{"temperature_init": 0.675, "schedule": 1.5, "n": 7, "temperature_final": 1.0}',3,'running',NULL,1,0,NULL,NULL,NULL,'host:2',0.0,NULL,10,'c','2026-11-21 08:31:38.839039',NULL);
INSERT INTO "tempopt_ticket" VALUES(6,1,'search',2,'search',4,NULL,NULL,4611686018427387908,NULL,NULL,'running',NULL,1,0,NULL,NULL,NULL,'host:3',0.0,NULL,NULL,NULL,'2026-11-21 08:31:38.885005',NULL);
INSERT INTO "tempopt_ticket" VALUES(7,1,'search',2,'search',5,NULL,NULL,4611686018427387909,'{"temperature_init": 0.925, "schedule": "linear", "n": 1, "temperature_final": 1.0}',5,'running',NULL,1,0,NULL,NULL,NULL,'host:4',0.0,NULL,10,'c','2026-11-21 08:31:38.909887',NULL);
INSERT INTO "tempopt_ticket" VALUES(8,1,'search',2,'search',6,NULL,NULL,4611686018427387910,'{"temperature_init": 1.05, "schedule": null, "n": 3, "temperature_final": 1.0}',6,'waiting',NULL,1,0,NULL,NULL,'interrupted',NULL,1.0,NULL,10,'c','2026-11-21 08:31:38.979307',NULL);
INSERT INTO "tempopt_ticket" VALUES(9,1,'search',2,'search',7,NULL,NULL,4611686018427387911,NULL,NULL,'waiting',NULL,0,0,NULL,NULL,NULL,NULL,0.0,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE trial_heartbeats (
	trial_heartbeat_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	heartbeat DATETIME NOT NULL, 
	PRIMARY KEY (trial_heartbeat_id), 
	UNIQUE (trial_id), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_intermediate_values (
	trial_intermediate_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	intermediate_value FLOAT, 
	intermediate_value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_intermediate_value_id), 
	UNIQUE (trial_id, step), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_intermediate_values" VALUES(1,1,5,0.6,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(2,1,10,0.7,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(3,2,5,0.1,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(4,3,5,NULL,'NAN');
INSERT INTO "trial_intermediate_values" VALUES(5,4,5,0.4,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(6,6,5,0.2,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(7,6,10,0.3,'FINITE');
INSERT INTO "trial_intermediate_values" VALUES(8,7,5,0.9,'FINITE');
CREATE TABLE trial_params (
	param_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	param_name VARCHAR(512), 
	param_value FLOAT, 
	distribution_json TEXT, 
	PRIMARY KEY (param_id), 
	UNIQUE (trial_id, param_name), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_params" VALUES(1,1,'temperature_init',0.3,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.25, "high": 4.0, "log": true}}');
INSERT INTO "trial_params" VALUES(2,1,'schedule',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["constant", "linear", null, 1.5]}}');
INSERT INTO "trial_params" VALUES(3,1,'n',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}');
INSERT INTO "trial_params" VALUES(4,2,'temperature_init',0.425,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.25, "high": 4.0, "log": true}}');
INSERT INTO "trial_params" VALUES(5,2,'schedule',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["constant", "linear", null, 1.5]}}');
INSERT INTO "trial_params" VALUES(6,2,'n',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}');
INSERT INTO "trial_params" VALUES(7,3,'temperature_init',0.55,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.25, "high": 4.0, "log": true}}');
INSERT INTO "trial_params" VALUES(8,3,'schedule',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["constant", "linear", null, 1.5]}}');
INSERT INTO "trial_params" VALUES(9,3,'n',5.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}');
INSERT INTO "trial_params" VALUES(10,4,'temperature_init',0.675,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.25, "high": 4.0, "log": true}}');
INSERT INTO "trial_params" VALUES(11,4,'schedule',3.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["constant", "linear", null, 1.5]}}');
INSERT INTO "trial_params" VALUES(12,4,'n',7.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}');
INSERT INTO "trial_params" VALUES(13,5,'temperature_init',0.8,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.25, "high": 4.0, "log": true}}');
INSERT INTO "trial_params" VALUES(14,5,'schedule',0.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["constant", "linear", null, 1.5]}}');
INSERT INTO "trial_params" VALUES(15,5,'n',9.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}');
INSERT INTO "trial_params" VALUES(16,6,'temperature_init',0.925,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.25, "high": 4.0, "log": true}}');
INSERT INTO "trial_params" VALUES(17,6,'schedule',1.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["constant", "linear", null, 1.5]}}');
INSERT INTO "trial_params" VALUES(18,6,'n',1.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}');
INSERT INTO "trial_params" VALUES(19,7,'temperature_init',1.05,'{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.25, "high": 4.0, "log": true}}');
INSERT INTO "trial_params" VALUES(20,7,'schedule',2.0,'{"name": "CategoricalDistribution", "attributes": {"choices": ["constant", "linear", null, 1.5]}}');
INSERT INTO "trial_params" VALUES(21,7,'n',3.0,'{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 1, "high": 9}}');
CREATE TABLE trial_system_attributes (
	trial_system_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_system_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
CREATE TABLE trial_user_attributes (
	trial_user_attribute_id INTEGER NOT NULL, 
	trial_id INTEGER, 
	"key" VARCHAR(512), 
	value_json TEXT, 
	PRIMARY KEY (trial_user_attribute_id), 
	UNIQUE (trial_id, "key"), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_user_attributes" VALUES(1,1,'tempopt:ticket','2');
INSERT INTO "trial_user_attributes" VALUES(2,2,'tempopt:ticket','3');
INSERT INTO "trial_user_attributes" VALUES(3,3,'tempopt:ticket','4');
INSERT INTO "trial_user_attributes" VALUES(4,3,'diverged_at','5');
INSERT INTO "trial_user_attributes" VALUES(5,4,'tempopt:ticket','5');
INSERT INTO "trial_user_attributes" VALUES(6,5,'tempopt:ticket','6');
INSERT INTO "trial_user_attributes" VALUES(7,6,'tempopt:ticket','7');
INSERT INTO "trial_user_attributes" VALUES(8,7,'tempopt:ticket','8');
CREATE TABLE trial_values (
	trial_value_id INTEGER NOT NULL, 
	trial_id INTEGER NOT NULL, 
	objective INTEGER NOT NULL, 
	value FLOAT, 
	value_type VARCHAR(7) NOT NULL, 
	PRIMARY KEY (trial_value_id), 
	UNIQUE (trial_id, objective), 
	FOREIGN KEY(trial_id) REFERENCES trials (trial_id)
);
INSERT INTO "trial_values" VALUES(1,1,0,0.7,'FINITE');
INSERT INTO "trial_values" VALUES(2,2,0,0.1,'FINITE');
INSERT INTO "trial_values" VALUES(3,6,0,0.3,'FINITE');
CREATE TABLE trials (
	trial_id INTEGER NOT NULL, 
	number INTEGER, 
	study_id INTEGER, 
	state VARCHAR(8) NOT NULL, 
	datetime_start DATETIME, 
	datetime_complete DATETIME, 
	PRIMARY KEY (trial_id), 
	FOREIGN KEY(study_id) REFERENCES studies (study_id)
);
INSERT INTO "trials" VALUES(1,0,1,'COMPLETE','2026-11-21 08:31:38.565782','2026-11-21 08:31:38.688770');
INSERT INTO "trials" VALUES(2,1,1,'PRUNED','2026-11-21 08:31:38.720743','2026-11-21 08:31:38.775598');
INSERT INTO "trials" VALUES(3,2,1,'PRUNED','2026-11-21 08:31:38.791486','2026-11-21 08:31:38.836804');
INSERT INTO "trials" VALUES(4,3,1,'RUNNING','2026-11-21 08:31:38.847011',NULL);
INSERT INTO "trials" VALUES(5,4,1,'RUNNING','2026-11-21 08:31:38.890932',NULL);
INSERT INTO "trials" VALUES(6,5,1,'COMPLETE','2026-11-21 08:31:38.922715','2026-11-21 08:31:38.971436');
INSERT INTO "trials" VALUES(7,6,1,'RUNNING','2026-11-21 08:31:38.980725',NULL);
CREATE TABLE version_info (
	version_info_id INTEGER NOT NULL, 
	schema_version INTEGER, 
	library_version VARCHAR(256), 
	PRIMARY KEY (version_info_id), 
	CHECK (version_info_id=1)
);
INSERT INTO "version_info" VALUES(1,12,'5.0.0');
CREATE INDEX tempopt_ticket_next ON tempopt_ticket (study_id, state, stage, number);
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('tempopt_study',1);
INSERT INTO "sqlite_sequence" VALUES('tempopt_ticket',9);
COMMIT;
